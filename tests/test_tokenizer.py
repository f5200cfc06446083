"""The tokenizer that text conversions and readers of tokens share."""

import hashlib
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli import warm
from tests.text import TEXTS, trained
from tokenizers import Tokenizer, pre_tokenizers, processors

from penstock.errors import FormatError, MissingError
from penstock.tokenizer import TextTokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return trained()


def test_ids_are_those_of_the_package_one_text_at_a_time(tokenizer: Tokenizer) -> None:
    found = load_tokenizer(tokenizer).encode(TEXTS)
    assert [ids.tolist() for ids in found] == [tokenizer.encode(text).ids for text in TEXTS]
    assert found.values.dtype == np.uint16


def test_special_tokens_of_the_post_processor_can_be_left_out(tokenizer: Tokenizer) -> None:
    adding = Tokenizer.from_str(tokenizer.to_str())
    adding.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 0)])
    made = load_tokenizer(adding)
    assert made.encode(["", "cat"])[0].tolist() == [1, 0]
    assert made.encode(["", "cat"], special_tokens=False)[0].tolist() == []


def test_ids_that_only_the_post_processor_has_are_refused(tokenizer: Tokenizer) -> None:
    """They would be other tokens: of 70,003, two bytes have room for 4,467."""
    adding = Tokenizer.from_str(tokenizer.to_str())
    adding.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 70_003)])
    with pytest.raises(ValueError, match=r"expected ids below \d+, .* got 70003, which the post-processor adds"):
        load_tokenizer(adding).encode(["cat"])
    assert len(load_tokenizer(adding).encode(["cat"], special_tokens=False).values)


def test_truncation_and_padding_that_the_json_asks_for_are_not_done(tokenizer: Tokenizer) -> None:
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(3)
    cutting.enable_padding(length=20)
    found = load_tokenizer(cutting)
    assert [ids.tolist() for ids in found.encode(TEXTS)] == [tokenizer.encode(text).ids for text in TEXTS]
    assert found.sha256 == load_tokenizer(tokenizer).sha256
    assert len(cutting.encode(TEXTS[0])) == 20, "the tokenizer of the caller stays as it was"


def test_one_digest_for_a_file_a_directory_an_object_and_a_pickle(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(str(tmp_path / "tokenizer.json"), pretty=True)
    expected = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    given = [tmp_path / "tokenizer.json", str(tmp_path), tokenizer]
    assert {load_tokenizer(one).sha256 for one in given} == {expected}
    again = pickle.loads(pickle.dumps(load_tokenizer(tokenizer)))
    assert again.sha256 == expected
    assert load_tokenizer(again) is again
    assert load_tokenizer(trained(300)).sha256 != expected


def test_the_largest_id_chooses_the_type_also_where_ids_have_gaps(tokenizer: Tokenizer) -> None:
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"]["far"] = 65535
    assert load_tokenizer(Tokenizer.from_str(json.dumps(content))).dtype == np.uint32
    content["model"]["vocab"]["far"] = 65534
    assert load_tokenizer(Tokenizer.from_str(json.dumps(content))).dtype == np.uint16
    assert load_tokenizer(tokenizer).vocab_size == tokenizer.get_vocab_size()


def test_special_tokens_spelled_out_in_a_text_are_as_the_tokenizer_was_told(tokenizer: Tokenizer) -> None:
    keeping = Tokenizer.from_str(tokenizer.to_str())
    keeping.encode_special_tokens = True
    for one in (tokenizer, keeping):
        made = pickle.loads(pickle.dumps(load_tokenizer(one)))
        assert made.encode(["a<eos>b"])[0].tolist() == one.encode("a<eos>b").ids
    assert keeping.encode("a<eos>b").ids != tokenizer.encode("a<eos>b").ids


def test_decoding_gives_the_text_back(tokenizer: Tokenizer) -> None:
    made = load_tokenizer(tokenizer)
    assert made.decode_batch(list(made.encode(TEXTS))) == TEXTS
    ids = [*tokenizer.encode("cat").ids, 0]
    assert made.decode(ids) == "cat<eos>"
    assert made.decode(np.array(ids, np.int32), skip_special_tokens=True) == "cat"
    assert made.decode([]) == ""


@pytest.mark.parametrize("ids", [[5, 100_000], [5, -100]])
def test_ids_of_another_tokenizer_are_refused_instead_of_left_out(tokenizer: Tokenizer, ids: list[int]) -> None:
    with pytest.raises(ValueError, match=f"got {ids[1]}: these are tokens of another tokenizer"):
        load_tokenizer(tokenizer).decode(ids)


def test_ids_must_be_whole_numbers_in_one_dimension(tokenizer: Tokenizer) -> None:
    with pytest.raises(TypeError, match="one dimension, got float64"):
        load_tokenizer(tokenizer).decode([0.5])
    with pytest.raises(TypeError, match=r"shape \(1, 2\)"):
        load_tokenizer(tokenizer).decode([[1, 2]])


def test_offsets_are_characters_of_each_text(tokenizer: Tokenizer) -> None:
    ids, offsets = load_tokenizer(tokenizer).encode_with_offsets(TEXTS)
    assert offsets.tolist() == [list(pair) for text in TEXTS for pair in tokenizer.encode(text).offsets]
    assert len(offsets) == len(ids.values)


def test_tokens_are_found_by_name_or_id(tokenizer: Tokenizer) -> None:
    made = load_tokenizer(tokenizer)
    assert (made.token_id("<bos>"), made.token_id(1)) == (1, 1)
    with pytest.raises(ValueError, match="'<pad>', which is not in its vocabulary"):
        made.token_id("<pad>")
    with pytest.raises(ValueError, match="got 100000"):
        made.token_id(100_000)


def test_what_is_no_tokenizer_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"gpt2: expected a tokenizer\.json, found nothing; .*from_pretrained"):
        load_tokenizer("gpt2")
    with pytest.raises(MissingError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 7}')
    with pytest.raises(FormatError, match=r"tokenizer\.json: expected the JSON of a tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(TypeError, match="got 7"):
        load_tokenizer(7)


def test_a_tokenizer_with_python_parts_is_refused(tokenizer: Tokenizer) -> None:
    class Splitter:
        def pre_tokenize(self, pretok: object) -> None: ...

    own = Tokenizer.from_str(tokenizer.to_str())
    own.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Splitter())
    with pytest.raises(TypeError, match="can be saved as JSON"):
        load_tokenizer(own)


def test_without_the_package_the_error_says_how_to_install_it() -> None:
    code = """
import sys
sys.modules["tokenizers"] = None
from penstock.tokenizer import load_tokenizer
try:
    load_tokenizer("tokenizer.json")
except ImportError as error:
    print(error)
"""
    done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "this needs tokenizers: pip install 'penstock[text]'"


def test_a_fast_tokenizer_of_transformers_is_taken(tokenizer: Tokenizer) -> None:
    class Fast:
        backend_tokenizer = tokenizer

    assert load_tokenizer(Fast()).sha256 == load_tokenizer(tokenizer).sha256
    assert isinstance(load_tokenizer(Fast()), TextTokenizer)
