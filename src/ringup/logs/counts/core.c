/*
 * The counting engine: what plain.py does, at the speed of reading.  The two give the same answers line by
 * line; plain.py says what they are, this file says only how they are found quickly.
 *
 * No byte of a log is trusted: every length is checked before it is used, every table has an upper bound.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_LINE = 1 << 20,
    LEAST_PLAIN = 64,
    MAX_PLAIN = 1000,
    MAX_KNOWN = 1 << 16,
    LEAST_SLOTS = 256,
    MARK_BITS = 10,
    WAY_BITS = 11,
    MAX_MISSES = 1 << 15,
    BLOCK_CALLS = 64,
    TAIL_CALLS = 2 * BLOCK_CALLS,
    MAX_SEARCHED = 2048,
    CHAIN_BITS = 12,
    MAX_FOUND = 64,
};
static const uint64_t RADIX = 0x9E3779B97F4A7C15u, MODULUS = ((uint64_t)1 << 61) - 1;

/* Text between two pointers; `at` NULL where there is none. */
typedef struct {
    const char *at;
    size_t size;
} Text;

typedef struct {
    uint64_t asked, offset, line;
    int32_t column;
} Call;

/* Calls of one column in a sequence. */
typedef struct Kind {
    struct Kind *next;
    uint64_t column, calls;
} Kind;

typedef struct {
    Kind *kinds;
    uint64_t count, digest; /* of the block that is not full */
    uint64_t offset, line;  /* of the last call of any kind */
    const char *last;       /* in the block in hand, or NULL: then `kept` has it */
    size_t last_size;
    uint64_t (*blocks)[3];
    size_t n_blocks, room;
    Call tail[TAIL_CALLS];
    char kept[MAX_PLAIN + 24];
} Sequence;

/*
 * One remembered text: a head, what a call asks for, or where.  It is known by its hash alone.  The seed of the
 * hash is secret, so two texts meet by chance only: once in 2**48 lines with full tables.
 */
typedef struct {
    uint64_t hash;   /* 0: free */
    uint64_t number; /* of a head: the hash of its kind; of what a call asks for: its number */
    Sequence *sequence;
    Kind *kind;
    int32_t code;
} Entry;

/* The head and communicator of the last call on lines with equal first bytes and kind: most are the same again. */
typedef struct {
    Entry head, comm;
    size_t tail; /* bytes from the communicator to the end */
} Way;

/* Open addressing; at most a quarter of the slots is used, their number is a power of two. */
typedef struct {
    Entry *slots;
    size_t used, room;
} Table;

/*
 * Words to search lines for, in lower case.  At each place of a line four bytes, and two for the words that
 * have fewer than four, are looked up in a set of bits; only where one is set the words that begin so are tried.
 */
typedef struct {
    Text text;
    uint16_t next; /* the place behind that of the next word with this beginning; 0: none */
} Word;

typedef struct {
    Word *words;
    size_t n_words;
    uint64_t long_bits[(1 << 16) / 64], short_bits[(1 << 16) / 64];
    uint16_t chains[1 << CHAIN_BITS];
} Words;

typedef struct {
    uint16_t numbers[MAX_FOUND];
    size_t size;
    int is_known;
} Found;

typedef struct {
    PyObject_HEAD
    PyObject *handler;
    Words *words;
    uint64_t until; /* up to this line every one is handed on */
    uint64_t line, offset, seed;
    uint64_t last_offset, last_line;
    const char *last; /* as that of a sequence */
    char kept[MAX_PLAIN];
    size_t last_size;
    char *carry;
    size_t carried;
    Table codes, heads; /* by all before the mark, by the head in it */
    Table asked, comms; /* by kind and text from the count to the root, by code and text behind that */
    size_t misses;
    uint64_t *counts;
    size_t n_counts;
    int32_t *touched;
    size_t n_touched;
    Sequence **sequences;
    size_t n_sequences;
    uint16_t marks[1 << MARK_BITS][2]; /* by a line's first bytes: how many stood before the mark */
    Way ways[1 << WAY_BITS];           /* by a line's first bytes and those before the mark */
    uint64_t era;                      /* times that pointers were forgotten */
} Engine;

static const char MARK[] = ": opCount ", INFO[] = "NCCL INFO ", COUNT[] = " count ", COMM[] = " comm ";

static uint64_t load8(const char *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_hex(char c) { return ((unsigned char)(c - '0') < 10) | ((unsigned char)((c | 32) - 'a') < 6); }
static int is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static int is_dark(char c) { return !is_space(c); }
static int is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static int is_host(char c) { return is_word(c) || c == '.' || c == '-'; }

static const char *find(const char *at, const char *end, const char *what, size_t size) {
    while ((size_t)(end - at) >= size && (at = memchr(at, what[0], (size_t)(end - at) - size + 1))) {
        if (!memcmp(at, what, size))
            return at;
        at++;
    }
    return NULL;
}

/* The two halves of the product of two numbers, folded into one. */
static uint64_t folded(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    uint64_t low = (uint32_t)a * (uint64_t)(uint32_t)b, high = (a >> 32) * (b >> 32);
    uint64_t one = (a >> 32) * (uint32_t)b + (low >> 32), two = (uint32_t)a * (b >> 32) + (uint32_t)one;
    return (two << 32 | (uint32_t)low) ^ (high + (one >> 32) + (two >> 32));
#endif
}

/* Two sums of products, as wyhash has them; what is multiplied is never known to who wrote the text. */
static inline uint64_t hash_of(Text text, uint64_t seed) {
    const uint64_t key = seed * RADIX ^ MODULUS;
    uint64_t one = seed ^ text.size, two = key + text.size;
    const char *at = text.at, *end = at + text.size;
    char padded[32];
    if (text.size < sizeof padded) {
        memset(padded, 0, sizeof padded);
        at = memcpy(padded, at, text.size), end = at + sizeof padded;
    }
    for (; end - at > 32; at += 32) {
        one = folded(load8(at) ^ seed, load8(at + 8) ^ one);
        two = folded(load8(at + 16) ^ key, load8(at + 24) ^ two);
    }
    at = end - 32; /* some bytes once more, rather than fewer at a time */
    one = folded(load8(at) ^ seed, load8(at + 8) ^ one);
    two = folded(load8(at + 16) ^ key, load8(at + 24) ^ two);
    return folded(one ^ key, two ^ seed) | 1;
}

/* The number of some bytes, big end first, modulo 2**61 - 1; `value` is that of the bytes before. */
static uint64_t modulo(uint64_t value, Text text) {
    for (size_t i = 0; i < text.size; i++) {
        uint64_t high = value >> 53; /* what 8 bits more would carry over 61 */
        value = ((value & (((uint64_t)1 << 53) - 1)) << 8 | (unsigned char)text.at[i]) + high;
        if (value >= MODULUS)
            value -= MODULUS;
    }
    return value;
}

static Entry *lookup(const Table *table, uint64_t hash) {
    size_t slot = (hash >> 20) & (table->room - 1);
    while (table->slots[slot].hash && table->slots[slot].hash != hash)
        slot = (slot + 1) & (table->room - 1);
    return &table->slots[slot];
}

static void empty(Table *table) {
    if (table->used)
        memset(table->slots, 0, table->room * sizeof *table->slots);
    table->used = 0;
}

static int grow(Table *table, size_t room) {
    Table old = *table;
    if (!(table->slots = calloc(room, sizeof(Entry)))) {
        table->slots = old.slots;
        return PyErr_NoMemory(), -1;
    }
    table->room = room;
    for (size_t i = 0; i < old.room; i++)
        if (old.slots[i].hash)
            *lookup(table, old.slots[i].hash) = old.slots[i];
    free(old.slots);
    return 0;
}

/* Remember a text; -1 with MemoryError set. */
static int keep(Table *table, Entry entry) {
    if (table->used >= MAX_KNOWN)
        empty(table);
    if (4 * table->used >= table->room && grow(table, 2 * table->room) < 0)
        return -1;
    *lookup(table, entry.hash) = entry;
    table->used++;
    return 0;
}

/* Calls of the handler: -1 with an exception set where it raises one. */
static long ask(PyObject *result) {
    if (!result)
        return -1;
    long value = PyLong_AsLong(result);
    Py_DECREF(result);
    if (value < 0 || value > INT32_MAX / 4) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a number beyond its range");
        return -1;
    }
    return value;
}

/* What may stand before a process's name: nothing, a stamp, a label; not the rest of a torn line. */
static int is_whole_prefix(Text prefix) {
    const char *end = prefix.at + prefix.size;
    if (!prefix.size)
        return 1;
    if (find(prefix.at, end, "NCCL ", 5))
        return 0;
    return end[-1] == ' ' || end[-1] == '\t' ||
           (prefix.size > 1 && end[-1] == ':' && (end[-2] == ']' || end[-2] == '>'));
}

/* The head that ends before the mark: HOST:PID:TID [DEV] NCCL INFO KIND; `at` NULL where there is none. */
static Text head_of(const char *line, const char *mark) {
    const char *at = mark;
    while (at > line && is_word(at[-1]))
        at--;
    if (at == mark || mark - at > 40 || at - line < 10 || memcmp(at - 10, INFO, 10))
        return (Text){NULL, 0};
    at -= 10;
    const char *c = at;
    if (c - line > 3 && c[-1] == ' ' && c[-2] == ']' && is_digit(c[-3])) {
        for (c -= 3; c > line && is_digit(c[-1]); c--)
            ;
        if (c > line && c[-1] == '[')
            at = c - 1;
    }
    c = at;
    if (c - line > 1 && c[-1] == ' ' && is_digit(c[-2])) { /* TID, PID, HOST from behind */
        for (c -= 2; c > line && is_digit(c[-1]); c--)
            ;
        if (c - line > 1 && c[-1] == ':' && is_digit(c[-2])) {
            for (c -= 2; c > line && is_digit(c[-1]); c--)
                ;
            if (c - line > 1 && c[-1] == ':' && is_host(c[-2])) {
                for (c -= 2; c > line && is_host(c[-1]); c--)
                    ;
                at = c;
            }
        }
    }
    return (Text){at, (size_t)(mark - at)};
}

static const char *literal(const char *at, const char *end, const char *what) {
    size_t size = strlen(what);
    return at && (size_t)(end - at) >= size && !memcmp(at, what, size) ? at + size : NULL;
}

static const char *run_of(const char *at, const char *end, int (*is)(char)) {
    const char *begin = at;
    while (at && at < end && is(*at))
        at++;
    return at == begin ? NULL : at;
}

static const char *pointer(const char *at, const char *end) {
    const char *nil = literal(at, end, "(nil)");
    return nil ? nil : run_of(literal(at, end, "0x"), end, is_hex);
}

/* The end of what is not white, which must not be empty. */
static const char *dark(const char *at, const char *end) {
    const char *begin = at;
#if defined __GNUC__ && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = UINT64_C(0x0101010101010101);
    while (at && end - at >= 8) { /* eight bytes at a time, to the first that is below '!' */
        uint64_t bytes = load8(at), low = (bytes - ones * '!') & ~bytes & ones * 0x80;
        at += low ? __builtin_ctzll(low) / 8 : 8;
        if (low)
            break;
    }
#endif
    while (at && at < end && is_dark(*at))
        at++;
    return at == begin ? NULL : at;
}

/* The end of opCount's digits and the pointers to what is sent and received; NULL where they are not these. */
static const char *pointers(const char *at, const char *end) {
    at = dark(literal(run_of(at, end, is_hex), end, " sendbuff "), end);
    at = dark(literal(at, end, " recvbuff "), end);
    const char *acc = literal(at, end, " acc ");
    return acc ? dark(acc, end) : at;
}

/* The fields behind the pointers. */
typedef struct {
    Text before_op, op, root, comm;
    long nranks;
} Fields;

static int fields_of(const char *at, const char *end, Fields *found) {
    const char *begin = at = literal(at, end, COUNT);
    at = run_of(at, end, is_digit);
    at = run_of(literal(at, end, " datatype "), end, is_digit);
    if (!at)
        return 0;
    found->before_op = (Text){begin, (size_t)(at - begin)};
    begin = at = literal(at, end, " op ");
    if (!(at = run_of(at, end, is_digit)))
        return 0;
    found->op = (Text){begin, (size_t)(at - begin)};
    begin = at;
    if ((at = literal(at, end, " root ")) && at < end && *at == '-')
        at++;
    if (!(at = run_of(at, end, is_digit)))
        return 0;
    found->root = (Text){begin, (size_t)(at - begin)};
    begin = at = literal(at, end, " comm ");
    if (!(at = pointer(at, end)))
        return 0;
    found->comm = (Text){begin, (size_t)(at - begin)};
    begin = at = literal(at, end, " [nranks=");
    if (!(at = run_of(at, end, is_digit)) || at - begin > 9)
        return 0;
    for (found->nranks = 0; begin < at; begin++)
        found->nranks = found->nranks * 10 + (*begin - '0');
    if (!(at = pointer(literal(at, end, "] stream "), end)))
        return 0;
    const char *task = literal(at, end, " task ");
    if (task && (task = run_of(task, end, is_digit)) &&
        (task = run_of(literal(task, end, " globalrank "), end, is_digit)))
        at = task;
    while (at < end && is_space(*at))
        at++;
    return at == end;
}

static Text kind_of(const char *mark) {
    const char *kind = mark;
    while (is_word(kind[-1]))
        kind--;
    return (Text){kind, (size_t)(mark - kind)};
}

static uint64_t arguments_number(Text kind, const Fields *f) {
    int own = f->op.size != 1 || *f->op.at >= '5';
    uint64_t value = modulo(modulo(0, kind), (Text){" ", 1});
    value = modulo(modulo(value, f->before_op), (Text){" op ", 4});
    return modulo(modulo(value, own ? (Text){"own", 3} : f->op), f->root);
}

/* A sequence by its number, made where there is none; NULL for an exception. */
static Sequence *sequence_of(Engine *self, long number) {
    if ((size_t)number >= self->n_sequences) {
        size_t wanted = (size_t)number + 1;
        Sequence **more = realloc(self->sequences, wanted * sizeof *more);
        if (!more)
            return PyErr_NoMemory(), NULL;
        self->sequences = more;
        for (; self->n_sequences < wanted; self->n_sequences++)
            if (!(more[self->n_sequences] = calloc(1, sizeof **more)))
                return PyErr_NoMemory(), NULL;
    }
    return self->sequences[number];
}

/* The kind of a column in a sequence, made where there is none; NULL for an exception. */
static Kind *kind_in(Sequence *s, int32_t column) {
    Kind **at = &s->kinds;
    while (*at && (*at)->column != (uint64_t)column)
        at = &(*at)->next;
    if (!*at && !(*at = calloc(1, sizeof **at)))
        return PyErr_NoMemory(), NULL;
    (*at)->column = (uint64_t)column;
    return *at;
}

static inline int add(Engine *self, Sequence *s, Kind *kind, int32_t code, uint64_t asked, Text raw) {
    uint64_t offset = self->offset, line = self->line;
    kind->calls++;
    s->offset = offset, s->line = line, s->last = raw.at;
    s->last_size = raw.size > sizeof s->kept ? sizeof s->kept : raw.size;
    if (code & 1)
        return 0;
    if (s->count % BLOCK_CALLS == 0) {
        if (s->n_blocks == s->room) {
            size_t room = s->room ? 2 * s->room : 16;
            uint64_t(*more)[3] = realloc(s->blocks, room * sizeof *more);
            if (!more)
                return PyErr_NoMemory(), -1;
            s->blocks = more, s->room = room;
        }
        if (s->n_blocks)
            s->blocks[s->n_blocks - 1][0] = s->digest;
        uint64_t *block = s->blocks[s->n_blocks++];
        block[1] = offset, block[2] = line;
        s->digest = 0;
    }
    s->tail[s->count++ % TAIL_CALLS] = (Call){asked, offset, line, code >> 1};
    s->digest = s->digest * RADIX + asked;
    return 0;
}

static int count(Engine *self, int32_t column) {
    if ((size_t)column >= self->n_counts) {
        size_t wanted = (size_t)column + 64;
        uint64_t *counts = realloc(self->counts, wanted * sizeof *counts);
        if (counts)
            self->counts = counts;
        int32_t *touched = realloc(self->touched, wanted * sizeof *touched);
        if (touched)
            self->touched = touched;
        if (!counts || !touched)
            return PyErr_NoMemory(), -1;
        memset(self->counts + self->n_counts, 0, (wanted - self->n_counts) * sizeof *counts);
        self->n_counts = wanted;
    }
    if (!self->counts[column]++)
        self->touched[self->n_touched++] = column;
    return 0;
}

/* The head before a mark, with the code of the call: 1; 0 where there is none; -1 for an exception. */
static int known_head(Engine *self, const char *line, const char *mark, Entry *found) {
    Text before = {line, (size_t)(mark - line)};
    uint64_t whole = 0;
    if (self->misses < MAX_MISSES) { /* stamps make each line's beginning another text */
        whole = hash_of(before, self->seed + 1);
        if (found->hash == whole)
            return 1;
        *found = *lookup(&self->codes, whole);
        if (found->hash)
            return 1;
        self->misses++;
    }
    Text head = head_of(line, mark);
    if (!head.at)
        return 0;
    Text prefix = {line, (size_t)(head.at - line)};
    if (!is_whole_prefix(prefix) || find(line, head.at, MARK, 10)) /* the guess may not be the first mark */
        return 0;
    uint64_t hash = hash_of(head, self->seed);
    *found = *lookup(&self->heads, hash);
    if (!found->hash) {
        Text kind = kind_of(mark);
        long code = ask(PyObject_CallMethod(self->handler, "column", "y#y#", prefix.at, (Py_ssize_t)prefix.size,
                                            head.at, (Py_ssize_t)head.size));
        *found = (Entry){.hash = hash, .number = hash_of(kind, self->seed + 2), .code = (int32_t)code};
        if (code < 0 || keep(&self->heads, *found) < 0)
            return -1;
    }
    found->hash = whole;
    return whole && keep(&self->codes, *found) < 0 ? -1 : 1;
}

static int is_mark(const char *at) {
    return !((load8(at) ^ load8(MARK)) | (load8(at + 2) ^ load8(MARK + 2)));
}

/* The first mark, or another one (no head before it is known); NULL where there is none. */
static const char *mark_of(Engine *self, const char *line, const char *end) {
    uint16_t *guess = self->marks[load8(line) * RADIX >> (64 - MARK_BITS)];
    size_t last = (size_t)(end - line) - 10;
    const char *one = line + (guess[0] < last ? guess[0] : last), *two = line + (guess[1] < last ? guess[1] : last);
    int is_one = is_mark(one);
    if (is_one | is_mark(two))
        return is_one ? one : two;
    const char *mark = find(line, end, MARK, 10);
    if (mark)
        guess[1] = guess[0], guess[0] = (uint16_t)(mark - line);
    return mark;
}

/* Remember what follows the pointers of a call: 1; 0 where that is no call's; -1 for an exception. */
static int learn(Engine *self, Text kind, int32_t code, Text rest, Entry *asked, Entry *comm) {
    Fields f;
    if (!fields_of(rest.at, rest.at + rest.size, &f))
        return 0;
    long number = ask(PyObject_CallMethod(self->handler, "sequence", "iy#l", (int)(code >> 1), f.comm.at,
                                          (Py_ssize_t)f.comm.size, f.nranks));
    comm->sequence = number < 0 ? NULL : sequence_of(self, number);
    comm->kind = comm->sequence ? kind_in(comm->sequence, code >> 1) : NULL;
    if (!comm->kind)
        return -1;
    asked->number = arguments_number(kind, &f);
    int is_new[] = {!lookup(&self->asked, asked->hash)->hash, !lookup(&self->comms, comm->hash)->hash};
    return (is_new[0] && keep(&self->asked, *asked) < 0) || (is_new[1] && keep(&self->comms, *comm) < 0) ? -1 : 1;
}

/* 1 where the line is a plain call, which is then counted; 0 where it is none; -1 for an exception. */
static int plain_call(Engine *self, const char *line, const char *end) {
    const char *mark = end - line < LEAST_PLAIN ? NULL : mark_of(self, line, end);
    if (!mark || mark - line < 8)
        return 0;
    Way *way = &self->ways[(load8(line) * MODULUS ^ load8(mark - 8)) * RADIX >> (64 - WAY_BITS)];
    int known = known_head(self, line, mark, &way->head);
    if (known < 1) {
        way->head.hash = 0;
        return known;
    }
    int32_t code = way->head.code;
    const char *rest = pointers(mark + 10, end);
    if (!rest || !literal(rest, end, COUNT))
        return 0;
    size_t size = (size_t)(end - rest), tail = way->tail; /* a guess */
    if (tail < 6 || tail > size || memcmp(end - tail, COMM, 6)) {
        const char *at = find(rest, end, COMM, 6);
        if (!at)
            return 0;
        way->tail = tail = (size_t)(end - at);
    }
    Entry asked = {.hash = hash_of((Text){rest, size - tail}, way->head.number)};
    uint64_t seed = (self->seed + self->era) ^ (uint64_t)(code + 2) * MODULUS;
    Entry comm = {.hash = hash_of((Text){end - tail, tail}, seed)};
    const Entry *old = lookup(&self->asked, asked.hash);
    const Entry *on = way->comm.hash == comm.hash ? &way->comm : lookup(&self->comms, comm.hash);
    if (!old->hash || !on->hash) {
        if ((known = learn(self, kind_of(mark), code, (Text){rest, size}, &asked, &comm)) < 1)
            return known;
        old = &asked, on = &comm;
    }
    if (on != &way->comm)
        way->comm = *on;
    Text raw = {line, (size_t)(end - line)};
    if (count(self, code >> 1) < 0 || add(self, way->comm.sequence, way->comm.kind, code, old->number, raw) < 0)
        return -1;
    return 1;
}

static const uint32_t FOLD = 0x20202020;

/* The next four bytes, zeros behind the end; letters in lower case, and some other bytes are one as well. */
static inline uint32_t folded4(const char *at, const char *end) {
    uint32_t value = 0;
    if (end - at >= 4)
        memcpy(&value, at, 4);
    else
        memcpy(&value, at, (size_t)(end - at));
    return value | FOLD;
}

static inline uint32_t two_of(uint32_t four) {
    uint16_t two;
    memcpy(&two, &four, 2);
    return two;
}

static inline uint32_t mixed(uint32_t four) { return four * 0x9E3779B1u >> 16; }
static inline int has(const uint64_t *bits, uint32_t at) { return bits[at / 64] >> at % 64 & 1; }

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c; }

/* Add the words that stand at a place to those found in the line. */
static void add_words_at(const Words *words, uint32_t beginning, const char *at, const char *end, Found *found) {
    for (uint16_t i = words->chains[mixed(beginning) >> (16 - CHAIN_BITS)]; i; i = words->words[i - 1].next) {
        const Text *text = &words->words[i - 1].text;
        size_t n = 0;
        if (text->size > (size_t)(end - at))
            continue;
        while (n < text->size && lower(at[n]) == text->at[n])
            n++;
        if (n < text->size)
            continue;
        for (n = 0; n < found->size && found->numbers[n] != i - 1; n++)
            ;
        if (n == found->size && n < MAX_FOUND)
            found->numbers[found->size++] = (uint16_t)(i - 1);
    }
}

static void find_words(const Words *words, const char *line, const char *end, Found *found) {
    for (const char *at = line; end - at >= 2; at++) {
        uint32_t four = folded4(at, end);
        if (has(words->long_bits, mixed(four)))
            add_words_at(words, four, at, end, found);
        if (has(words->short_bits, two_of(four)))
            add_words_at(words, two_of(four), at, end, found);
    }
}

/* Words that the line holds without its colours. */
static void find_bare_words(const Words *words, const char *line, const char *end, Found *found) {
    char bare[MAX_SEARCHED];
    size_t n = 0;
    for (const char *at = line; at < end; at++) {
        const char *c = at + 2;
        if (*at == '\x1b' && end - at > 2 && at[1] == '[') {
            while (c < end && (is_digit(*c) || *c == ';'))
                c++;
            if (c < end && (*c == 'm' || *c == 'K')) {
                at = c;
                continue;
            }
        }
        bare[n++] = *at;
    }
    find_words(words, bare, bare + n, found);
}

/*
 * Whether a line is to be handed on, and the words in it; `is_known` 0 where these are not all: it is written so
 * that it may hold others when it is unpacked.
 */
static int is_wanted(const Engine *self, const char *line, size_t size, Found *found) {
    const char *end = line + size;
    found->size = 0;
    found->is_known = self->words && size <= MAX_SEARCHED && !memchr(line, '&', size)
                      && !memchr(line, '\\', size) && !memchr(line, 0, size);
    if (!found->is_known)
        return 1;
    find_words(self->words, line, end, found);
    if (memchr(line, '\x1b', size)) {
        found->is_known = 0;
        find_bare_words(self->words, line, end, found);
    }
    if (found->size == MAX_FOUND)
        found->is_known = 0;
    return found->size || self->line <= self->until;
}

/* A line without its newline; -1 for an exception. */
static int take(Engine *self, const char *line, size_t size) {
    const char *end = line + size, *c = line;
    if (!size)
        return 0;
    int known = size <= MAX_PLAIN ? plain_call(self, line, end) : 0;
    while (!known && c < end && is_space(*c))
        c++;
    if (c < end) {
        self->last_offset = self->offset, self->last_line = self->line;
        self->last = line, self->last_size = size > MAX_PLAIN ? MAX_PLAIN : size;
    }
    Found found;
    if (known || !is_wanted(self, line, size, &found))
        return known;
    const char *numbers = found.is_known ? (const char *)found.numbers : NULL;
    PyObject *result = PyObject_CallMethod(self->handler, "odd", "Ky#y#", (unsigned long long)self->line, line,
                                           (Py_ssize_t)size, numbers,
                                           (Py_ssize_t)(found.size * sizeof *found.numbers));
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* The lines that calls stood on, before their memory goes. */
static void keep_lines(Engine *self) {
    for (size_t i = 0; i < self->n_sequences; i++) {
        Sequence *s = self->sequences[i];
        if (s->last && s->last != s->kept)
            memcpy(s->kept, s->last, s->last_size);
        s->last = s->kept;
    }
    if (self->last && self->last != self->kept)
        self->last = memcpy(self->kept, self->last, self->last_size);
}

static int take_carry(Engine *self) {
    int bad = take(self, self->carry, self->carried) < 0;
    keep_lines(self);
    self->offset += self->carried;
    self->carried = 0;
    return bad ? -1 : 0;
}

static int carry(Engine *self, const char *at, size_t size) {
    char *more = size ? realloc(self->carry, self->carried + size) : self->carry;
    if (size && !more)
        return PyErr_NoMemory(), -1;
    self->carry = more;
    if (size)
        memcpy(self->carry + self->carried, at, size);
    self->carried += size;
    return 0;
}

static PyObject *feed(Engine *self, PyObject *block) {
    char *at;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(block, &at, &size) < 0)
        return NULL;
    const char *end = at + size, *newline;
    int bad = 0;
    while (!bad && (newline = memchr(at, '\n', (size_t)(end - at)))) {
        size_t length = (size_t)(newline - at);
        if (self->carried) {
            bad = carry(self, at, length) < 0 || take_carry(self) < 0;
        } else {
            bad = take(self, at, length) < 0;
            self->offset += length;
        }
        self->offset++;
        self->line++;
        at = (char *)newline + 1;
    }
    keep_lines(self);
    bad = bad || carry(self, at, (size_t)(end - at)) < 0 || (self->carried > MAX_LINE && take_carry(self) < 0);
    if (bad)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *finish(Engine *self, PyObject *unused) {
    (void)unused;
    if (self->carried) {
        if (take_carry(self) < 0)
            return NULL;
        self->line++;
    }
    Py_RETURN_NONE;
}

static int put(PyObject *list, PyObject *item) {
    int bad = !item || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return bad ? -1 : 0;
}

static PyObject *take_counts(Engine *self, PyObject *unused) {
    (void)unused;
    PyObject *counts = PyDict_New();
    for (size_t i = 0; i < self->n_touched; i++) {
        int32_t column = self->touched[i];
        PyObject *key = PyLong_FromLong(column), *calls = PyLong_FromUnsignedLongLong(self->counts[column]);
        self->counts[column] = 0;
        if (counts && (!key || !calls || PyDict_SetItem(counts, key, calls) < 0))
            Py_CLEAR(counts);
        Py_XDECREF(key), Py_XDECREF(calls);
    }
    self->n_touched = 0;
    return counts;
}

static PyObject *forget(Engine *self, PyObject *unused) {
    (void)unused;
    empty(&self->comms);
    self->era += RADIX;
    Py_RETURN_NONE;
}

static void free_words(Words *words) {
    for (size_t i = 0; words && i < words->n_words; i++)
        free((char *)words->words[i].text.at);
    free(words ? words->words : NULL);
    free(words);
}

/* One more word, of at least two bytes; -1 with an exception set. */
static int learn_word(Words *words, PyObject *word) {
    char *at, *own;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(word, &at, &size) < 0)
        return -1;
    if (size < 2 || size > MAX_SEARCHED)
        return PyErr_SetString(PyExc_ValueError, "a word of fewer than two bytes, or of too many"), -1;
    if (!(own = malloc((size_t)size)))
        return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < size; i++)
        own[i] = lower(at[i]);
    int is_short = size < 4;
    uint32_t four = folded4(own, own + size), beginning = is_short ? two_of(four) : four;
    uint32_t bit = is_short ? beginning : mixed(four);
    (is_short ? words->short_bits : words->long_bits)[bit / 64] |= (uint64_t)1 << bit % 64;
    uint16_t *chain = &words->chains[mixed(beginning) >> (16 - CHAIN_BITS)];
    words->words[words->n_words++] = (Word){{own, (size_t)size}, *chain};
    *chain = (uint16_t)words->n_words;
    return 0;
}

static PyObject *look_for(Engine *self, PyObject *list) {
    Py_ssize_t size = PyList_Size(list);
    if (size < 0)
        return NULL;
    if (size >= UINT16_MAX)
        return PyErr_SetString(PyExc_ValueError, "too many words"), NULL;
    Words *words = calloc(1, sizeof *words);
    int bad = !words || !(words->words = calloc((size_t)size + 1, sizeof *words->words));
    if (bad)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; !bad && i < size; i++)
        bad = learn_word(words, PyList_GetItem(list, i)) < 0;
    if (bad)
        return free_words(words), NULL;
    free_words(self->words);
    self->words = words;
    Py_RETURN_NONE;
}

static PyObject *append(Engine *self, PyObject *args) {
    int sequence, code;
    unsigned long long asked;
    const char *raw;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "iiKy#", &sequence, &code, &asked, &raw, &size))
        return NULL;
    if (sequence < 0 || sequence > INT32_MAX / 4 || code < 0)
        return PyErr_SetString(PyExc_ValueError, "a number beyond its range"), NULL;
    Sequence *s = sequence_of(self, sequence);
    Kind *kind = s ? kind_in(s, code >> 1) : NULL;
    if (!kind || add(self, s, kind, code, asked, (Text){raw, (size_t)size}) < 0)
        return NULL;
    memcpy(s->kept, raw, s->last_size);
    s->last = s->kept;
    Py_RETURN_NONE;
}

static PyObject *calls_of(Sequence *s) {
    PyObject *kinds = PyList_New(0), *tail = PyList_New(0), *last = NULL, *blocks = NULL, *result = NULL;
    int bad = !kinds || !tail;
    for (Kind *kind = s->kinds; !bad && kind; kind = kind->next)
        bad = put(kinds, Py_BuildValue("KK", (unsigned long long)kind->column, (unsigned long long)kind->calls));
    uint64_t first = s->count > TAIL_CALLS ? s->count - TAIL_CALLS : 0;
    for (uint64_t i = first; !bad && i < s->count; i++) {
        Call *call = &s->tail[i % TAIL_CALLS];
        bad = put(tail, Py_BuildValue("KKKi", (unsigned long long)call->asked, (unsigned long long)call->offset,
                                      (unsigned long long)call->line, call->column));
    }
    if (s->n_blocks)
        s->blocks[s->n_blocks - 1][0] = s->digest;
    if (!bad)
        blocks = PyBytes_FromStringAndSize((const char *)s->blocks, (Py_ssize_t)(s->n_blocks * sizeof *s->blocks));
    if (blocks && s->last)
        last = Py_BuildValue("KKy#", (unsigned long long)s->offset, (unsigned long long)s->line, s->last,
                             (Py_ssize_t)s->last_size);
    else if (blocks)
        last = Py_NewRef(Py_None);
    if (last)
        result = Py_BuildValue("OKOOO", kinds, (unsigned long long)s->count, blocks, tail, last);
    Py_XDECREF(kinds), Py_XDECREF(tail), Py_XDECREF(last), Py_XDECREF(blocks);
    return result;
}

static PyObject *calls(Engine *self, PyObject *unused) {
    (void)unused;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < self->n_sequences; i++)
        if (put(list, calls_of(self->sequences[i])) < 0)
            Py_CLEAR(list);
    return list;
}

static PyObject *get_line(Engine *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(self->line);
}

static PyObject *get_until(Engine *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(self->until);
}

static int set_until(Engine *self, PyObject *value, void *unused) {
    (void)unused;
    unsigned long long until = value ? PyLong_AsUnsignedLongLong(value) : 0;
    if (PyErr_Occurred())
        return -1;
    self->until = until;
    return 0;
}

static PyObject *get_offset(Engine *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(self->offset);
}

static PyObject *get_last(Engine *self, void *unused) {
    (void)unused;
    if (!self->last)
        Py_RETURN_NONE;
    return Py_BuildValue("KKy#", (unsigned long long)self->last_offset, (unsigned long long)self->last_line,
                         self->last, (Py_ssize_t)self->last_size);
}

static int init(Engine *self, PyObject *args, PyObject *kwargs) {
    PyObject *handler;
    (void)kwargs;
    unsigned long long seed;
    if (!PyArg_ParseTuple(args, "OK", &handler, &seed))
        return -1;
    if (self->handler)
        return PyErr_SetString(PyExc_TypeError, "an engine is made once"), -1;
    if (grow(&self->codes, LEAST_SLOTS) < 0 || grow(&self->heads, LEAST_SLOTS) < 0 ||
        grow(&self->asked, LEAST_SLOTS) < 0 || grow(&self->comms, LEAST_SLOTS) < 0)
        return -1;
    self->handler = Py_NewRef(handler);
    self->line = 1;
    self->seed = seed;
    return 0;
}

static int traverse(Engine *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->handler);
    return 0;
}

static int clear(Engine *self) {
    Py_CLEAR(self->handler);
    return 0;
}

static void dealloc(Engine *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    free(self->codes.slots);
    free(self->heads.slots);
    free(self->asked.slots);
    free(self->comms.slots);
    for (size_t i = 0; i < self->n_sequences; i++) {
        for (Kind *next, *kind = self->sequences[i]->kinds; kind; kind = next)
            next = kind->next, free(kind);
        free(self->sequences[i]->blocks);
        free(self->sequences[i]);
    }
    free(self->sequences);
    free(self->counts);
    free(self->touched);
    free(self->carry);
    free_words(self->words);
    Py_XDECREF(self->handler);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"feed", (PyCFunction)feed, METH_O, "The next bytes of the file."},
    {"finish", (PyCFunction)finish, METH_NOARGS, "The end of the file."},
    {"take_counts", (PyCFunction)take_counts, METH_NOARGS, "Plain calls by column since the last time."},
    {"forget", (PyCFunction)forget, METH_NOARGS, "From here on a pointer may mean another communicator."},
    {"look_for", (PyCFunction)look_for, METH_O, "Hand on only lines with one of these words, in any case."},
    {"append", (PyCFunction)append, METH_VARARGS, "One call of the line in hand."},
    {"calls", (PyCFunction)calls, METH_NOARGS, "Of each sequence: calls by column, collectives, blocks, tail, last."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"line", (getter)get_line, NULL, "Number of the line in hand, or of the next one.", NULL},
    {"until", (getter)get_until, (setter)set_until, "Up to this line every one is handed on.", NULL},
    {"offset", (getter)get_offset, NULL, "Where it begins.", NULL},
    {"last", (getter)get_last, NULL, "The last line that is not empty.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Engine(handler, seed): counts lines as they come; see plain.py."},
    {Py_tp_init, init},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {0, NULL},
};

static PyType_Spec spec = {
    "ringup.logs.counts.core.Engine", sizeof(Engine), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "core", "The counting engine.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_core(void) {
    PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&spec);
    if (!made || !type || PyModule_AddObjectRef(made, "Engine", type) < 0)
        Py_CLEAR(made);
    Py_XDECREF(type);
    return made;
}
