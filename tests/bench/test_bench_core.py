import functools
import json

from zerocopy_seed import cli
from zerocopy_seed.bench import core


def test_the_ratio_is_the_lstm_over_its_three_products(monkeypatch, capsys):
    monkeypatch.setattr(core, "pin_to_one_core", lambda: None)  # would pin the other tests too
    tiny = functools.partial(core.measure, size=8, unroll_length=3, batch_size=2, rounds=2)
    monkeypatch.setattr(core, "measure", tiny)
    assert cli.main(["bench", "core", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["bench"], found["size"], found["T"], found["B"]) == ("core", 8, 3, 2)
    products = [found[f"{name}_product_s"] for name in ("forward", "inputs", "weights")]
    assert min(products) > 0
    assert abs(found["ratio_to_products"] - found["lstm_s"] / sum(products)) < 1e-6


def test_what_it_has_no_use_for_is_refused(capsys):
    assert cli.main(["bench", "core", "--num-envs", "4"]) == 2
    assert capsys.readouterr().err.startswith("bench core: --num-envs: expected none")
