"""A random Llama 3 of a few thousand parameters with one token per byte, and data in the columns of its presets."""

import json
from pathlib import Path

# As in Meta's tokenizer: the template writes the beginning of text and ends each turn with <|eot_id|>.
BOS, EOS, EOT, PAD = "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|finetune_right_pad_id|>"
_SPECIAL = (BOS, EOS, EOT, PAD, "<|start_header_id|>", "<|end_header_id|>")
_TEMPLATE = (
    "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
CONTEXT = 512


def build_tiny_llama(folder: Path, **shape: int) -> Path:
    """Write the model and its tokenizer.

    Args:
        shape: overrides of its config.
    """
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate([*_SPECIAL, *letters])}, merges=[]))
    tokens.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        bos_token=BOS,
        eos_token=EOT,
        pad_token=PAD,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=_TEMPLATE,
    )
    tiny = {"vocab_size": len(tokenizer), "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}
    tiny |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(
        **{**tiny, **shape},
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    # Published weights are bfloat16.
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_conversations(path: Path, num_rows: int) -> Path:
    """Rows with the columns of the three presets' data: messages, chosen and rejected, context_messages."""
    rows = []
    for index in range(num_rows):
        question = {"role": "user", "content": f"What follows {index}?"}
        right, wrong = ({"role": "assistant", "content": f"It is {index + step}."} for step in (1, 7))
        row = {
            "messages": [question, right, {"role": "user", "content": "Thanks"}, {"role": "assistant", "content": "."}],
            "context_messages": [question],
            "chosen": [question, right],
            "rejected": [question, wrong],
        }
        rows.append(json.dumps(row) + "\n")
    path.write_text("".join(rows))
    return path
