"""Trains a small Llama with the Trainer of Hugging Face's transformers, which is not changed."""

import json

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainerCallback
from transformers import TrainingArguments as Arguments

torch.manual_seed(1)
config = LlamaConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
tokens = torch.randint(0, 96, (64, 16))
arguments = Arguments(
    "out",
    max_steps=3,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    logging_steps=1,
    learning_rate=1e-2,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
logged = []


class Keep(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            logged.append([logs["loss"], logs["grad_norm"], logs["learning_rate"]])


trainer = Trainer(
    model=AutoModelForCausalLM.from_config(config),
    args=arguments,
    train_dataset=[{"input_ids": each, "labels": each} for each in tokens],
    callbacks=[Keep()],
)
trainer.train()
print(
    json.dumps(
        {"logged": logged, "layer": type(trainer.model.model.layers[0].mlp.up_proj).__module__}
    )
)
