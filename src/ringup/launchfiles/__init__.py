"""
The launches in a shell file, a job file, a manifest or a pasted line.  Files are read, never run.

    programs, start   the words of one command: starters, wrappers, launcher, options, script
    shell, expansion  a file's commands, by tree-sitter-bash; their words as the shell would expand them
    manifests         containers of Kubernetes, SkyPilot and docker compose with their commands, by PyYAML
    model             one launch: nodes, ranks, endpoint, worlds
    files             `read`: a file of any kind
"""
