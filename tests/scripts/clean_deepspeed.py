"""DeepSpeed: its argument for the launcher, its engine, checkpoints by every rank."""

import argparse

import deepspeed
import torch
import torch.distributed as dist


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=10)
    return deepspeed.add_config_arguments(parser).parse_args()


def main() -> None:
    args = arguments()
    deepspeed.init_distributed()
    model = torch.nn.Linear(8, 8)
    engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    for step in range(args.steps):
        loss = engine(torch.randn(4, 8).to(engine.device)).sum()
        engine.backward(loss)
        engine.step()
        if dist.get_rank() == 0:
            print(step, loss.item())
    engine.save_checkpoint("checkpoints")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
