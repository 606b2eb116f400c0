#!/bin/bash
export GLOO_SOCKET_IFNAM=eth0
export NCCL_DEBUG==INFO
torchrun --nproc_per_node 8 train.py
