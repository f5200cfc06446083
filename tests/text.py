"""Texts, and a tokenizer that is trained on them."""

from functools import lru_cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = ["the cat sat on the mat", "", "the dog ate the cat, naïve façade", "日本語 🎉 mixed with words\n\n", "x" * 300]
SPECIAL = ["<eos>", "<bos>", "<|im_start|>", "<|im_end|>"]


def trained(vocab_size: int = 400) -> Tokenizer:
    """A tokenizer of its own: BPE over bytes, as those of GPT-2 and Llama 3 are."""
    return Tokenizer.from_str(_trained(vocab_size))


@lru_cache
def _trained(vocab_size: int) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return str(tokenizer.to_str())


def documents(count: int) -> list[str]:
    """Texts of several lengths, also empty ones."""
    words = " ".join(TEXTS).split()
    return [" ".join(words[(7 * number + place) % len(words)] for place in range(number % 23)) for number in range(count)]
