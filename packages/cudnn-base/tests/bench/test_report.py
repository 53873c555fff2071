"""Tables, CSV, comparisons, plots and the command line, from made-up results."""

from __future__ import annotations

import csv
import io
import json
import sys

import pytest

from cudnn.bench import cli, plot, report, spec

torch = pytest.importorskip("torch", reason="benchmarks work on torch tensors")


class TestTable:
    def test_plain(self, result):
        text = report.text(result(("eager", "half", "broken")), color=False)
        lines = text.splitlines()
        assert lines[0].split() == ["shape", "dtype", "candidate", "us", "TFLOP/s", "TB/s", "of", "floor", "ours", "is", "faster", "by", "rel.", "error"]
        assert lines[1].split()[:7] == ["64x32", "bfloat16", "ours", "100.0", "640", "0.32", "128"]
        assert "1.500 x" in lines[2] and "half (part)" in lines[3]
        assert lines[4].split()[2:4] == ["broken", "wrong"]
        assert lines[5].split()[:4] == ["64x32", "bfloat16", "floor", "128.0"]
        for part in (
            "Doubling on NVIDIA H200",
            "driver 580.1",
            "torch 2.11.0",
            "torch.matmul bfloat16 500 TFLOP/s, copy 4.00 TB/s",
            "geometric mean of ours over large: 1.500 x eager",
            "host cost of Toy.execute: 6.0 us (least 5.0)",
            "host cost of raising call: failed, MemoryError",
            "left out: absent, not installed",
        ):
            assert part in text

    def test_rich(self, result):
        pytest.importorskip("rich")
        text = report.text(result(), color=True)
        assert "\x1b[" in text and "Doubling on NVIDIA H200" in text and "1.500 x" in text

    def test_markdown(self, result):
        lines = report.markdown(result()).splitlines()
        assert lines[0].startswith("| shape | dtype | candidate | us |") and set(lines[1]) <= set("|-: ")
        assert lines[2].startswith("| 64x32 | bfloat16 | ours | 100.0 |")
        assert all(line.count("|") == lines[0].count("|") for line in lines[:10])

    def test_csv(self, result):
        rows = list(csv.DictReader(io.StringIO(report.csv_text(result()))))
        assert len(rows) == 6
        first = rows[0]
        assert (first["M"], first["K"], first["candidate"], float(first["us"]), first["sm_mhz"]) == ("64", "32", "ours", pytest.approx(100.0), "1755")
        assert float(rows[1]["ours_is_faster_by"]) == pytest.approx(1.5)


class TestCompare:
    def test_times_and_drift(self, result):
        # Ours went from 100 to 80 us while the device got 10 % slower for everybody.
        text = report.compare(result(), result(times={"ours": 80.0, "eager": 165.0, "half": 66.0}))
        assert "ours 1.250 x" in text and "eager 0.909 x" in text
        assert "ours, with the peers' drift taken out: 1.375 x" in text
        assert text.splitlines()[1].split() == ["64x32", "bfloat16", "ours", "100.0", "80.0", "1.250", "x"]

    def test_says_what_differs(self, result):
        other = result(device="NVIDIA H100")
        other["versions"] = {**other["versions"], "torch": "2.12.0"}
        text = report.compare(result(), other)
        assert "different device: NVIDIA H200 and NVIDIA H100" in text and "torch 2.11.0 -> 2.12.0" in text

    def test_only_what_both_have(self, result):
        text = report.compare(result(shapes="large"), result(("eager",), shapes="32x64,small-m"))
        assert text.count("32x64") == 2 and "64x32" not in text and "1x64" not in text and "half" not in text

    def test_nothing_in_common(self, result):
        with pytest.raises(ValueError, match="no shape and dtype is in both"):
            report.compare(result(shapes="large"), result(shapes="small-m"))
        with pytest.raises(ValueError, match="one file is of toy_double, the other of x"):
            report.compare(result(), {**result(), "op": "x"})


class TestPlot:
    def test_peers_keep_their_colours(self):
        spare: dict[str, str] = {}
        assert plot.color("cublas", spare) == plot.COLORS["cublas"] and plot.color("ours", spare) == plot.COLORS["ours"]
        assert len(set(plot.COLORS.values())) == len(plot.COLORS)
        shades = []
        for name in ("ours[a=1]", "ours[a=2]", "newcomer", "another"):
            spare[name] = plot.color(name, spare)
            shades.append(spare[name])
        assert len(set(shades)) == 4 and not set(shades) & set(plot.COLORS.values())
        assert plot.color("ours[a=1]", spare) == shades[0]

    def test_title_units_device_date(self, result, tmp_path, monkeypatch):
        pyplot = pytest.importorskip("matplotlib.pyplot")
        shown = []
        monkeypatch.setattr(pyplot, "close", lambda figure: shown.append(figure))
        data = result(shapes="large,1x4000", date="2026-11-30T12:00:00Z")
        plot.plot(data, str(tmp_path / "out.png"))
        (figure,) = shown
        assert figure.get_suptitle().strip() == "Doubling on NVIDIA H200"
        texts = " ".join(t.get_text() for t in figure.texts)
        assert "2026-11-30" in texts and "torch 2.11.0" in texts and "median of 21" in texts
        first, second = figure.axes
        assert first.get_ylabel() == "TFLOP/s" and second.get_ylabel().startswith("TB/s")
        assert first.get_title(loc="left") == "large, bfloat16" and first.get_xlabel() == "M x K"
        assert [t.get_text() for t in first.get_xticklabels()] == ["64x32", "32x64"]
        assert len(first.patches) == 6 and [round(p.get_height()) for p in first.patches[:3]] == [640, 427, 1067]
        legend = [t.get_text() for t in figure.legends[0].get_texts()]
        assert legend == ["ours of the toy", "eager of the toy", "half of the toy (part of the work)", "floor measured in the same run"]
        monkeypatch.undo()
        pyplot.close("all")
        assert (tmp_path / "out.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"

    def test_without_matplotlib(self, result, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(ImportError, match=r'pip install "cudnn-base\[bench\]"'):
            plot.plot(result(), str(tmp_path / "out.png"))


class TestCommand:
    @pytest.fixture
    def found(self, toy, monkeypatch):
        monkeypatch.setattr(spec, "find", lambda: ({"toy_double": toy.bench}, {}))
        return toy

    def test_list(self, found, capsys):
        assert cli.main(["list"]) == 0
        out = capsys.readouterr().out
        assert "toy_double: Doubling; bfloat16, float16" in out and "M x K: 64x32, 32x64" in out
        assert "absent of the toy; cannot run here: not installed (pip install absent)" in out and "half of the toy (part of the work)" in out

    def test_list_of_nothing_and_of_the_broken(self, monkeypatch, capsys):
        monkeypatch.setattr(spec, "find", lambda: ({}, {}))
        assert cli.main(["list"]) == 0
        assert "pip install cudnn-gemm-dense" in capsys.readouterr().out
        monkeypatch.setattr(spec, "find", lambda: ({}, {"x.bench": "SyntaxError: oh"}))
        assert cli.main(["list"]) == 1
        assert "x.bench: SyntaxError: oh" in capsys.readouterr().err

    @pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
    def test_run_without_a_gpu(self, found, capsys):
        assert cli.main(["run", "toy_double"]) == 2
        assert "bench measures kernels on a GPU, and torch" in capsys.readouterr().err

    def test_run_without_torch(self, found, capsys, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        assert cli.main(["run", "toy_double"]) == 2
        assert "torch, which is not installed" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["run", "gemm_swigloo"], "found 'gemm_swigloo', there are benchmarks of toy_double"),
            (["run", "toy_double", "--shapes", "4x"], "--shapes: found '4x'"),
            (["run", "toy_double", "--dtype", "int8"], "--dtype: found 'int8', toy_double is measured in bfloat16, float16"),
            (["run", "toy_double", "--repeats", "5"], "--repeats: found 5, needs at least 20"),
            (["run", "toy_double", "--merge"], "--merge needs --json FILE"),
            (["run", "toy_double", "--config", "tile"], "--config: found 'tile', needs FIELD=VALUE"),
        ],
    )
    def test_requests_that_cannot_be_met(self, found, capsys, arguments, message):
        assert cli.main(arguments) == 2
        assert message in capsys.readouterr().err

    def test_config(self):
        assert cli.parse_config("tile_m=128,pingpong=true,raster=n,stages=none,group=-1") == {
            "tile_m": 128,
            "pingpong": True,
            "raster": "n",
            "stages": None,
            "group": -1,
        }

    def run_on_fakes(self, monkeypatch, tmp_path, arguments):
        """`bench run` with the made-up clock on CPU tensors."""
        from cudnn.bench import environment, timing

        clock = sys.modules[next(name for name in sys.modules if name.endswith("conftest") and hasattr(sys.modules[name], "FakeTimer"))].FakeTimer()
        monkeypatch.setattr(cli, "_require_gpu", lambda device: None)
        monkeypatch.setattr(timing, "CudaTimer", lambda device: clock)
        monkeypatch.setattr(timing, "measure_rates", lambda timer, dtype, device: {"matmul_tflops": 500.0, "copy_tb_s": 4.0})
        monkeypatch.setattr(environment, "describe_device", lambda device: {"name": "NVIDIA H200", "driver": "580.1"})
        monkeypatch.setattr(environment, "gpu_state", lambda device: {"sm_mhz": 1700})
        return cli.main(["run", "toy_double", "--device", "cpu", *arguments])

    def test_a_run_that_is_cut_off_leaves_a_result_of_what_it_got_through(self, found, monkeypatch, tmp_path, capsys):
        from cudnn.bench import run

        measure = run.measure_shape

        def cut_off(bench, group, shape, *arguments, **more):
            if shape == (5, 6):
                raise KeyboardInterrupt
            return measure(bench, group, shape, *arguments, **more)

        monkeypatch.setattr(run, "measure_shape", cut_off)
        out = tmp_path / "out.json"
        with pytest.raises(KeyboardInterrupt):
            self.run_on_fakes(monkeypatch, tmp_path, ["--against", "eager", "--shapes", "large,5x6", "--json", str(out)])
        assert not out.exists()
        part = json.loads((tmp_path / "out.json.part").read_text())
        assert [row["shape"] for row in part["rows"]] == [[64, 32], [32, 64]] and part["summary"]["all"]["eager"] == pytest.approx(1.5)
        assert part["command"].startswith("python -m cudnn bench run toy_double") and part["device"]["name"] == "NVIDIA H200" and part["versions"]["torch"]
        assert cli.main(["show", f"{out}.part"]) == 0

    def test_run_writes_everything(self, found, monkeypatch, tmp_path, capsys):
        pytest.importorskip("matplotlib")
        files = {kind: tmp_path / "new" / f"out.{kind}" for kind in ("json", "csv", "png")}
        arguments = ["--against", "eager,half", "--shapes", "large,5x6", "--json", str(files["json"]), "--csv", str(files["csv"]), "--plot", str(files["png"])]
        assert self.run_on_fakes(monkeypatch, tmp_path, arguments) == 0
        assert "geometric mean of ours over all: 1.500 x eager" in capsys.readouterr().out
        data = json.loads(files["json"].read_text())
        assert [row["shape"] for row in data["rows"]] == [[64, 32], [32, 64], [5, 6]]
        assert data["versions"]["torch"] and data["command"].startswith("python -m cudnn bench run toy_double")
        assert files["csv"].read_text().count("\n") == 10 and files["png"].stat().st_size > 10_000
        assert not (tmp_path / "new" / "out.json.part").exists()
        assert cli.main(["show", str(files["json"]), "--markdown", str(tmp_path / "t.md"), "--plot", str(tmp_path / "again.svg")]) == 0
        assert "| 5x6 | bfloat16 | ours |" in (tmp_path / "t.md").read_text() and (tmp_path / "again.svg").read_text().lstrip().startswith("<?xml")
        assert cli.main(["compare", str(files["json"]), str(files["json"])]) == 0
        assert "ours 1.000 x" in capsys.readouterr().out

    def test_a_wrong_candidate_is_the_exit_code(self, found, monkeypatch, tmp_path, capsys):
        assert self.run_on_fakes(monkeypatch, tmp_path, ["--against", "broken", "--no-host"]) == 1
        captured = capsys.readouterr()
        assert "error: 64x32 bfloat16 broken: wrong, y has a relative error" in captured.err and "host cost" not in captured.out

    def test_merge_into_a_file(self, found, monkeypatch, tmp_path, capsys):
        path = tmp_path / "out.json"
        for shapes in ("64x32", "small-m"):
            assert self.run_on_fakes(monkeypatch, tmp_path, ["--against", "eager", "--shapes", shapes, "--json", str(path), "--merge"]) == 0
        assert [row["shape"] for row in json.loads(path.read_text())["rows"]] == [[64, 32], [1, 64]]

    @pytest.mark.parametrize(("content", "message"), [("{", "is no JSON"), ("[]", "is no result"), ('{"rows": []}', "is no result")])
    def test_files_that_are_none(self, tmp_path, capsys, content, message):
        (tmp_path / "x.json").write_text(content)
        assert cli.main(["show", str(tmp_path / "x.json")]) == 2
        assert message in capsys.readouterr().err
        assert cli.main(["show", str(tmp_path / "none.json")]) == 2


class TestFind:
    def test_beside_the_operation(self, monkeypatch, tmp_path):
        from cudnn import registry

        package = tmp_path / "thirdparty_bench"
        for name in ("good", "without", "bad"):
            (package / name).mkdir(parents=True)
            (package / name / "__init__.py").write_text("")
            (package / name / "api.py").write_text("")
        (package / "__init__.py").write_text("")
        (package / "good" / "bench.py").write_text("class BENCH:\n    op = 'good_op'\n")
        (package / "bad" / "bench.py").write_text("import nothing_of_the_kind\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(registry, "operations", lambda: [("third", f"thirdparty_bench.{name}.api") for name in ("good", "without", "bad")])
        found, broken = spec.find()
        assert list(found) == ["good_op"]
        assert list(broken) == ["thirdparty_bench.bad.bench"] and "No module named 'nothing_of_the_kind'" in broken["thirdparty_bench.bad.bench"]
