"""
What a shell file, a job file, a manifest or a pasted line starts.  Files are read, never run.

    programs, start   the words of one command: starters, wrappers, launcher, options, script
    shell             a file's commands with their expanded words, by tree-sitter-bash
    manifests         containers of Kubernetes, SkyPilot and docker compose with their commands, by PyYAML
    model             one launch: nodes, ranks, endpoint, worlds
    files             `read`: a file of any kind
"""
