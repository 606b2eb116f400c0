"""transformers' Trainer on a tiny model of random weights; nothing says on what it trains."""

import sys

import torch
from ending import formed
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

model = BertForSequenceClassification(
    BertConfig(vocab_size=32, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
)
data = [{"input_ids": torch.arange(4), "labels": torch.tensor(i % 2)} for i in range(8)]
arguments = TrainingArguments(
    sys.argv[1], max_steps=2, per_device_train_batch_size=1, report_to="none", save_strategy="no"
)
trainer = Trainer(model, arguments, train_dataset=data)
trainer.train()
state = trainer.accelerator
total = state.reduce(torch.tensor(float(state.process_index + 1)), reduction="sum")
formed(arguments.world_size, total.item())
