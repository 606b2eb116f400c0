"""Names of variables, options, fields and headers that hold secrets; runs on nodes too: Python 3.8."""

import re

HIDDEN = "(hidden)"
LONGEST_NAME = 200


def _set(words: str) -> "frozenset[str]":
    return frozenset(words.split())


# A word of a name (WANDB_API_KEY is wandb, api, key) that begins or ends like one of these marks a secret.
_BEGINS = ("password", "passwd", "passphrase", "passcode", "passwort", "secret", "credential", "apikey")
_ENDS = (
    *_BEGINS, "secrets", "credentials", "authtoken", "accesstoken", "accesskey", "secretkey",
    "privatekey", "masterkey", "psk", "jwt", "cred", "creds", "encryptionkey", "accountkey",
    "licensekey", "sshkey", "passkey", "requirepass", "dbpass", "keypass", "storepass", "userpass",
    "rootpw", "userpw", "dbpw", "mnemonic", "masterauth",
)  # fmt: skip
_PASSES = ("pass", "pwd", "pw", "psw", "pswd", "passw", "pwrd", "passwrd")
_FORMS = ("id", "data", "base", "b", "pem", "value", "hash", "string", "base64", "b64", "material")
_COUNTED = _set("""
    all autotune backward band bwd bypass can compile current did each every first forward fwd high is
    last low max min multi n next num one per prev render second single test tests third three total two
    warmup
""")
"""Before "pass": an iteration, not a password."""
_TEXT_TOKENS = _set("""
    added additional any assistant audio avg bad begin blank boi bos by byte cached cls completion
    consumed decoder domain draft each encoder end eod eoi eom eos eot fim first forced generated im
    image infill input lang language last mask max mean middle min n newline next no num one output pad
    patch per placeholder predicted prefix prev previous prompt rare reasoning register seen sep
    separator single source speaker special speculative src start stop sub suffix suppress system target
    text tgt think thinking timestamp top total trained unexpected unk unknown video vision vocab word
""")
"""Before "token": a piece of text."""
_SECRET_KEYS = _set("""
    access account admin aes anthropic api app application auth authentication authorization aws azure
    bearer cipher clearml client cohere comet consumer cookie crypto database datadog db dd decryption
    deploy ecdsa ed25519 encrypt encryption gcp gh github gitlab google gpg groq hf hmac host huggingface
    ingest ingestion integration jwt kms license master mistral mlflow neptune ngc nvidia openai
    personal pgp preshared priv private psk publishable root rsa sas secret sendgrid server service
    session shared sign signature signing slack ssh ssh2 ssl storage stripe subscription symmetric tls
    twilio unseal vault wandb webhook wg wifi wireguard wpa write
""")
"""Before "key": a secret, whatever its value looks like."""
_OTHER_KEYS = _set("""
    any arrow attention attn batch best cache checkpoint col column comm composite config data dataset
    dedup default dict each env feature field file foreign group hash hot ib idempotency image index
    input ip join json k keyboard kv l label layer lock lookup loss map mask message metric missing
    model module monitor name natural no node object option output p param parameter partition path pg
    pkey prefix primary prng pub public q query r random rank rdzv registry rendezvous return ring rng
    routing row sample seed sequence shard sort span state step store tag target tensor text trace
    translation unexpected unique v value weight
""")
"""Before "key": the name of something."""
_WEAK = _set("""
    auth authenticity cert csrf hmac jsessionid jwt key keys oauth otp phpsessid pin sas session
    sessionid sid sig signature token tokens webhook xsrf
""")
"""Secret if the value looks random."""
_DESCRIBES = _set("""
    accuracy age alg algorithm at auth authentication bits budget checker class cmd column columns
    command count counts date dim dir directory embedding embeddings enabled endpoint error errors
    exists expiration expire expired expires expiry fd field fields file filename folder format helper
    hint host id ids idx index invalid it iter len length level limit login logits loss manager mask max
    method min mode name names num ok parallelism path per policy port position present prob probability
    probs prompt provider rate ref refs required ring rotation s script sec second seconds set size sock
    socket status stdin step store strategy time timeout ttl type types uri url usage user username
    valid validator var variable verified version
""")
"""At the end of a name: a property of a secret, or of a text's tokens."""
_PLAIN = _set("""
    any auto bool bytes changeme_not default disabled empty enabled expired false float hidden int
    invalid masked missing munge n/a na nil no none null object off on optional permission redacted
    required set str string true undefined unknown unlimited unset valid yes
""")
_HOLDERS = (
    "self.", "cls.", "args.", "os.", "cfg.", "config.", "opts.", "options.", "kwargs", "settings.",
    "params.", "env.", "environ", "request.", "getpass", "flags.", "hparams.", "context.", "ctx.",
    "typing.", "Optional[", "Union[", "list[", "List[", "dict[", "Dict[", "tuple[", "Tuple[", "lambda",
)  # fmt: skip


def words_of(name: str) -> "list[str]":
    """
    The words of a name, in lower case.

    >>> words_of("X-Api-Key"), words_of("awsSecretAccessKey"), words_of("HFToken2")
    (['x', 'api', 'key'], ['aws', 'secret', 'access', 'key'], ['hf', 'token2'])
    """
    return _BETWEEN_WORDS.sub(" ", name[-LONGEST_NAME:]).lower().split()


_BETWEEN_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[\W_]")


def strength(name: str) -> int:
    """
    2: a secret whatever its value; 1: a secret if the value looks random; 0: not a secret.

    >>> strength("DB_PASSWD"), strength("session"), strength("TOKENIZERS_PARALLELISM")
    (2, 1, 0)
    """
    words = words_of(name)
    if not words:
        return 0
    last = words[-1].rstrip("0123456789") or words[-1]
    before = words[-2] if len(words) > 1 else ""
    # AWS_ACCESS_KEY_ID, a secret_id of Vault, client-key-data of a kubeconfig, PASSWORD_HASH.
    of_secret = before == "secret" or (before == "key" and not _SECRET_KEYS.isdisjoint(words[-3:-2]))
    if of_secret and last in _FORMS:
        return 2
    if last in _DESCRIBES and len(words) > 1:
        return 0
    if last in ("token", "tokens"):
        if _TEXT_TOKENS & set(words[:-1]):
            return 0
        return 2 if last == "token" else int(len(words) > 1)
    if last in ("key", "keys"):
        if before in _SECRET_KEYS:
            return 2
        return 0 if before in _OTHER_KEYS else 2 if before and words[-1] == "key" else 1
    if last == "pat" and before:  # GITHUB_PAT: a personal access token
        return 1 if _SECRET_KEYS.isdisjoint(words) else 2
    if last in _PASSES:
        return 0 if before in _COUNTED or (last == "pw" and len(words) == 1) else 2
    others = (word for word in words if word != "secretary")
    if any(word.startswith(_BEGINS) or word.rstrip("0123456789").endswith(_ENDS) for word in others):
        return 2
    is_joined = last.endswith(("token", "passwd", "password", "pwd", "pass")) and len(last) > 5
    if is_joined and last not in _LOOK_ALIKE:
        return 2
    if "token" in words or last in ("cookie", "cookies", "authorization", "bearer", "setcookie"):
        return 2 if not _TEXT_TOKENS & set(words) else 0
    return 1 if last in _WEAK else 0


_LOOK_ALIKE = (
    "bypass", "compass", "trespass", "surpass", "overpass", "underpass", "encompass", "subtoken",
    "oldpwd", "askpass", "pytoken", "multipass", "detoken", "pretoken", "untoken", "retoken",
)  # fmt: skip


def is_secret(name: str, value: "str | None" = None) -> bool:
    """
    Whether a variable, option or header of this name holds a secret; with a value, whether the value is one.

    >>> is_secret("HF_TOKEN"), is_secret("eos_token", "</s>"), is_secret("HF_TOKEN", "$HF_TOKEN")
    (True, False, False)
    >>> is_secret("key", "model.layers.0"), is_secret("key", "9f86d081884c7d659a2feaa0c55ad015")
    (False, True)
    """
    strong = strength(name)
    if value is None or not strong:
        return strong == 2
    if is_plain(name, value):
        return False
    return strong == 2 or looks_random(value)


def is_plain(name: str, value: str) -> bool:
    """Whether a value is a placeholder, a piece of code or a number rather than a secret."""
    value = value.strip().rstrip(",;)")
    low = value.lower()
    if low in _PLAIN or low == name.lower().lstrip("-") or value.startswith(_HOLDERS):
        return True
    words = words_of(name)
    if _CODE.match(value) or low.split(".")[-1] in words:  # token = self.token
        return True
    if _CONSTANT.match(value) and {*words} & {*words_of(value)}:
        return True  # another name
    last = words[-1] if words else ""
    if last == "token" and _PATH.match(value):
        return True
    number = value.replace(".", "", 1).replace(",", "").isdigit()
    is_alone = len(words) == 1 and not name.startswith("--")
    if is_alone and last in ("pwd", "pass", "token", "cookie", "cookies"):
        if number or (last == "pwd" and value[:1] in "/~"):
            return True
        is_word = value.isalpha() and (len(value) < 8 or last == "pass")
        is_identifier = last == "pass" and "_" in value and value.islower()
        return is_word or is_identifier or not value.isascii() or len(value) < 4
    is_other = len(words) > 1 and words[-2] not in _SECRET_KEYS and not name.isupper()
    if last == "key" and (number or is_other):
        return not looks_random(value)
    if any(word in ("pass", "password", "passwd", "pwd", "pw", "passphrase") for word in words):
        return False
    # A path in place of a secret is the name of its file.
    is_path = value.startswith(("/", "~/", "./")) and "=" not in value and "+" not in value
    return is_path or (number and len(value) < 10)


_CODE = re.compile(
    r"\(hidden|<|\[REDACTED|\[your_|\{\{|[*.x…X \\-]{3,}\Z|\\?\Z|[A-Za-z]{1,99}:\Z"
    # $NAME, ${NAME}, ${NAME:?...}, $(command), %NAME%: a reference in place of the secret
    r"|\$\(|%.{1,2000}%\Z|\$[A-Z_][A-Z0-9_]*\Z|\$\{(?![^}]*:[-=][^}])"
    r"|[A-Za-z._]{3,200}[(\[]"  # get_token(), os.environ["X"]
)
_PATH = re.compile(r"[A-Za-z.]{1,99}/[A-Za-z./]{0,199}\Z")
_CONSTANT = re.compile(r"[A-Z]{1,99}_[A-Z_]{0,99}\Z")


def looks_random(value: str) -> bool:
    """
    16 or more letters and digits in a row, mixed unlike any word; or base64 with its padding.

    >>> looks_random("wJalrXUtnFEMIK7MDENG"), looks_random("model.layers.0.self_attn")
    (True, False)
    """
    if value.startswith(("/", "./", "~/", "0x", "GPU-", "MIG-")):
        return False
    text = value.replace("%2B", "").replace("%2F", "").replace("%3D", "=").strip("\"' ")
    runs = re.findall(r"[A-Za-z0-9]+", text)
    if text.endswith("=") and len(runs) == 1 and len(runs[0]) >= 10:
        return True
    long = [run for run in runs if len(run) >= 16 and not run.isdigit()]
    return any(re.search("[0-9]", run) or len(re.findall("[a-z](?=[A-Z])", run)) > 3 for run in long)


def without_password(value: str) -> str:
    """
    A text without the passwords in its URLs.

    >>> without_password("http://ada:p/w@proxy:3128/"), without_password("tcp://10.0.0.1:29500")
    ('http://(hidden)@proxy:3128/', 'tcp://10.0.0.1:29500')
    """
    pieces = value.split("://")
    for at in range(1, len(pieces)):
        end = userinfo_end(pieces[at - 1], pieces[at])
        if end:
            pieces[at] = HIDDEN + pieces[at][end:]
    return "://".join(pieces)


def userinfo_end(scheme: str, rest: str) -> int:
    """
    End of user and password in the text after "://" (the position of "@"); 0 if there are none.

    A password may contain "/" and "@".  A path with "@" (repo@v1, @scope/package) is not a password.
    """
    run = re.split(r"[\s\"'`<>|\\]", rest[:2000])[0]
    authority = re.split("[/?#]", run)[0]
    user, colon, password = authority.partition(":")
    last = run.rfind("@")
    if last < 0:
        return 0
    if "@" not in authority:
        # user:p/w@host has no "@" before its first "/"; host:8080/path@v1 has a port there.
        is_port = password.isdigit() and not _DOMAIN.match(run[last + 1 :])
        return last if colon and password and not is_port and "." not in user else 0
    if "@" in user:  # no password: https://TOKEN@host, ssh://git@host
        end = authority.rfind("@")
        name = authority[:end]
        is_user = not scheme.lower().endswith(("http", "https")) or (name.isalpha() and len(name) < 16)
        return 0 if is_user and not looks_random(name) else end
    host = re.split("[/?:,]", run[last + 1 :])[0]
    return last if re.match(r"[\w.\[\]-]+\Z", host) else authority.rfind("@")


_DOMAIN = re.compile(r"[A-Za-z0-9.-]{0,250}\.[A-Za-z]{1,60}(?:[/:]|\Z)")
"""db.example.com, but not a version (1.2.3)."""


def shown_words(words: "list[str]") -> "list[str]":
    """
    The arguments of a command with the values of secret options hidden, in the same or the next argument.

    >>> shown_words(["train.py", "--hf-token", "abc", "--api-key=abc", "--tokenizer", "gpt2", "ftp://a:b@c"])
    ['train.py', '--hf-token', '(hidden)', '--api-key=(hidden)', '--tokenizer', 'gpt2', 'ftp://(hidden)@c']
    """
    shown = []  # type: list[str]
    option = ""
    for word in words:
        name, equals, value = word.partition("=")
        if option and not word.startswith("--") and is_secret(option, word):
            word = HIDDEN
        elif equals and is_secret(name, value):
            word = name + "=" + HIDDEN
        option = word if word.startswith("-") and not equals else ""
        shown.append(without_password(word))
    return shown
