"""The Hugging Face Trainer, with the usual order: the first process prepares, the others wait."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, Trainer, TrainingArguments


def main() -> None:
    parser = HfArgumentParser(TrainingArguments)
    parser.add_argument("--model", default="small")
    (training_args, *_) = parser.parse_args_into_dataclasses()
    if training_args.local_rank not in [-1, 0]:
        torch.distributed.barrier()
    tokenizer = AutoTokenizer.from_pretrained("small")
    if training_args.local_rank == 0:
        torch.distributed.barrier()
    model = AutoModelForCausalLM.from_pretrained("small").cuda()
    trainer = Trainer(model=model, args=training_args, tokenizer=tokenizer)
    trainer.train()
    trainer.save_model()
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(training_args.output_dir)


if __name__ == "__main__":
    main()
