"""Shakespeare, WikiText-2, AG News, on tiny files of their publishers' layout."""

import dataclasses
import hashlib
import sys
from types import SimpleNamespace

import pytest
import torch
from published import leaf, write

from fedloom.data import ag_news, blocks, iid, natural, shakespeare, wikitext2
from fedloom.data.published import texts as reviews
from fedloom.data.published.leaf import ALPHABET, encode
from fedloom.data.raw_inputs import by_frequency, padded
from support.refusals import refused

TEXT = "".join(ALPHABET[i * 7 % 80] for i in range(100))
OTHER = "To be, or not to be: that is the question. " * 3


def windows(text):
    count = len(text) - 80
    return {"x": [text[i : i + 80] for i in range(count)], "y": [*text[80:]]}


@pytest.fixture
def roles(tmp_path):
    """A function that writes roles, for training or for tests, and loads them."""

    def make(partition=None, split="train", more=None, **users):
        leaf(tmp_path / "leaf" / "shakespeare" / split, **users)
        return shakespeare(partition or natural(), data_dir=tmp_path, **(more or {}))

    return make


@pytest.mark.parametrize("kind", [lambda text: {"raw": text}, windows], ids=["raw", "windows"])
def test_every_window_of_a_role_predicts_the_next_character(roles, kind):
    roles(PLAY_HAMLET=kind(TEXT), PLAY_GHOST=kind(OTHER))
    data = roles(split="test", PLAY_GHOST=kind(OTHER[:85]))
    assert data.sizes.tolist() == [len(TEXT) - 80, len(OTHER) - 80]
    for client, text in enumerate((TEXT, OTHER)):
        inputs, targets = data.client(client)
        for i, (x, y) in enumerate(zip(data.ready(inputs), targets, strict=True)):
            assert [ALPHABET.find(c) for c in text[i : i + 80]] == x.tolist()
            assert ALPHABET.find(text[i + 80]) == y
    assert data.ready(data.inputs).dtype == torch.int64
    assert data.test_clients.sizes.tolist() == [0, 5] and data.test_inputs.shape == (5, 80)
    # the text is there once, however many windows there are
    assert data.inputs.untyped_storage().nbytes() < 3 * (len(TEXT) + len(OTHER))


def test_windows_that_leaf_left_out_stay_out(roles):
    some = {key: values[:5] + values[20:23] for key, values in windows(OTHER).items()}
    inputs, targets = roles(A=some).client(0)
    assert inputs.tolist() == [encode(window).tolist() for window in some["x"]]
    assert [ALPHABET[y] for y in targets] == some["y"]


def test_windows_over_two_roles_are_nobodys_however_they_are_dealt(roles):
    data = roles(iid(4), A={"raw": TEXT}, B={"raw": OTHER})
    assert int(data.sizes.sum()) == len(TEXT) + len(OTHER) - 160
    crossing = torch.arange(len(TEXT) - 80, len(TEXT))
    assert not torch.isin(data.clients.indices, crossing).any()


def test_test_windows_can_be_fewer(roles):
    roles(A={"raw": OTHER})
    whole, few = (roles(split="test", A={"raw": OTHER}, more=m) for m in ({}, {"test_samples": 10}))
    step = -(-len(whole.test_inputs) // 10)
    assert torch.equal(few.test_inputs, whole.test_inputs[::step])
    refused(lambda: roles(A={"raw": OTHER}, more={"test_samples": 0}), "test_samples")


def test_the_alphabet_is_leafs_and_what_is_not_in_it_is_its_last():
    assert len(ALPHABET) == 80 and sorted(ALPHABET) == list(ALPHABET)
    assert encode(ALPHABET).tolist() == list(range(80))
    assert encode("é#\U0001f600").tolist() == [79] * 3


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"raw": "x" * 80}, "no text of more than 80 characters"),
        ({"raw": 3}, "no text"),
        ({"x": ["a" * 79], "y": ["b"]}, "must have 80 characters"),
        ({"x": ["a" * 80], "y": ["bc"]}, "the next one alone"),
        ({"x": ["a" * 80], "y": []}, "no lists x and y of one length"),
    ],
)
def test_a_role_that_is_altered_is_named(roles, data, says):
    refused(lambda: roles(GHOST=data), "user GHOST", says)


def wikitext(tmp_path, **parts):
    for part, text in parts.items():
        write(tmp_path / "wikitext-2" / f"wiki.{part}.tokens", text)


def test_windows_of_words_predict_the_next_words(tmp_path):
    wikitext(tmp_path, train=" = A = \n \n b A c b \n", test=" b z \n A c \n")
    load = lambda **options: wikitext2(blocks(2), data_dir=tmp_path, length=3, **options)
    data = load()
    # "= A = <eos> <eos> b A c b <eos>", in order of appearance
    assert data.class_names == ("=", "A", "<eos>", "b", "c", "<unk>")
    text = [0, 1, 0, 2, 2, 3, 1, 4, 3, 2]
    assert data.inputs.tolist() == [text[0:3], text[3:6], text[6:9]]
    assert data.targets.tolist() == [text[1:4], text[4:7], text[7:10]]
    # "b z <eos> A c <eos>": z is unknown
    assert data.test_inputs.tolist() == [[3, 5, 2]] and data.test_targets.tolist() == [[5, 2, 1]]
    assert data.clients.of(0).tolist() == [0, 1] and data.about["vocabulary"] == 6
    wikitext(tmp_path, test=" a b c d e f \n" * 3)
    few, whole = load(test_samples=2), load()
    assert len(whole.test_inputs) == 6 and torch.equal(few.test_targets, whole.test_targets[::3])


def test_a_training_text_that_cannot_be_read_points_to_what_is_there(tmp_path):
    wikitext(tmp_path, valid="a b c d e f\n", test="a b c d\n")
    load = lambda **options: wikitext2(iid(1), data_dir=tmp_path, length=2, **options)
    refused(load, "wiki.train.tokens", "data.part=valid")
    assert len(load(part="valid").inputs) == 3
    refused(lambda: load(part="test"), "part must be")
    for text, says in (
        ("a\n", "2 words, too few"),
        ("né\n".encode("latin1"), "wiki.valid.tokens is not UTF-8 ... 0xe9 at 1"),
    ):
        wikitext(tmp_path, valid=text)
        refused(lambda: load(part="valid"), says)


NEWS = '"3","Fears, he said","Wall St. \\falls"\n"1","A ""quoted"" word","Peace"\n'


@pytest.fixture
def news(tmp_path, monkeypatch):
    """AG News with checksums of its own and no home to be had: a function that loads it."""
    files = {}
    for name in ("train", "test"):
        write(tmp_path / "ag_news_csv" / f"{name}.csv", NEWS)
        own = {"md5": hashlib.md5(NEWS.encode()).hexdigest(), "url": f"file:///no/{name}.csv"}
        files[name] = dataclasses.replace(reviews.AG_NEWS[name], **own)
    monkeypatch.setattr(reviews, "AG_NEWS", files)
    monkeypatch.setattr("fedloom.data.published.download.RETRIES", 0)
    return lambda **options: ag_news(iid(1), data_dir=tmp_path, **options)


def test_news_are_title_and_text_in_the_training_texts_words(news):
    data = news(length=12, vocabulary=50)
    assert data.targets.tolist() == [2, 0] and data.class_names[2] == "Business"
    words = by_frequency(["Fears, he said Wall St.  falls", 'A "quoted" word Peace'], 50)
    first = ["fears", ",", "he", "said", "wall", "st", ".", "falls"]
    assert data.inputs[0].tolist() == [words[w] for w in first] + [0] * 4
    assert words['"'] == 2, "the only word that comes twice"
    words = by_frequency(["c a b", "b c", "c"], size=4)
    assert words == {"<pad>": 0, "<unk>": 1, "c": 2, "b": 3}, "the equally frequent: none left"
    assert padded(["A c B b", ""], words, length=3).tolist() == [[1, 2, 3], [0, 0, 0]]
    refused(lambda: by_frequency(["a"], 2), "vocabulary must be at least 3")
    refused(lambda: padded(["a"], words, 0), "length must be at least 1")


def test_a_tokeniser_that_cannot_be_used_is_named(news, monkeypatch):
    refused(lambda: news(tokeniser="x", vocabulary=9), "vocabulary = 9 is for words")
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(lambda: news(tokeniser="x"), "tokeniser 'x' needs transformers", "[text]")

    class Absent:
        @staticmethod
        def from_pretrained(source):
            raise OSError(f"{source} is not a folder\nand nothing else")

    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=Absent))
    refused(lambda: news(tokeniser="x"), "tokeniser 'x' cannot be used: x is not a folder; give")


def test_texts_by_a_tokeniser_are_its_tokens_cut_and_filled_up(news, tmp_path):
    transformers = pytest.importorskip("transformers", reason="the extra fedloom[text]")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    vocabulary = {w: i for i, w in enumerate(["<unk>", "<pad>", "fears", "he", "peace", "word"])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.normalizer = normalizers.Lowercase()
    tokeniser = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>"
    )
    source = str(tmp_path / "tokeniser")
    tokeniser.save_pretrained(source)
    data, short = (news(length=n, tokeniser=source) for n in (8, 3))
    # "Fears, he said Wall St.  falls" and 'A "quoted" word Peace'
    assert data.inputs.tolist() == [[2, 0, 3, 0, 0, 0, 0, 0], [0, 0, 0, 0, 5, 4, 1, 1]]
    assert data.about["vocabulary"] == 6 and data.about["tokeniser"] == source
    assert torch.equal(short.inputs, data.inputs[:, :3])


def test_a_subset_is_taken_by_its_name_only(news, tmp_path):
    folder = tmp_path / "ag_news_csv"
    (folder / "train.csv").unlink()
    refused(news, "train.csv is not in")
    write(folder / "train-9.tsv", "Some text\tSports\nMore\tSci/Tech\n\n")
    refused(news, "data.part=train-9")
    assert news(part="train-9").targets.tolist() == [1, 3]
    refused(lambda: news(part="train-8"), "has no file train-8.csv or train-8.tsv")
    refused(lambda: news(part="../x"), "has no file")
    for name, text, says in (
        ("train-9.tsv", "Some text\tSport\n", "row 1: class 'Sport' ... Sci/Tech"),
        ("train-9.csv", '"1","a","b"\n"2","c"\n', "row 2: 2 columns, expected 3"),
        ("train-9.csv", '"1","a","b\n', "no whole CSV file"),
        ("test.csv", NEWS + '"1","x","y"\n', "test.csv is damaged"),
    ):
        write(folder / name, text)
        refused(lambda: news(part="train-9"), says)
