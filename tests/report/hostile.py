"""Reports that no format may stumble over: a finding of every rule, suppressed ones, and names made to break out."""

from __future__ import annotations

from hypothesis import strategies as st
from msgspec.structs import replace

from blockaudit.records.contract import WITNESSES, ContractRow, Statement
from blockaudit.records.report import Finding, Place, Report, Suppressed
from blockaudit.rules import documentation, registry
from tests.report import samples

NAMES = (
    "\x1b[2J\x00\x07",
    "]]> <![CDATA[ --> <!--",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "\n::error file=a,line=1::b\r\n##[error]c",
    "lone \udcff and \ud800 surrogates",
    "right \u202eto\u202c left",
    "@everyone #1 GH-1 https://evil.example www.evil.example [a](https://evil.example) a/b#2",
    "| a | b |\n|---|---|",
    "` `` ``` \\` </details></summary>",
    "{0} {{1}} %0A %25 &amp; a&b 'q' \"q\"",
    "0123456789abcdef0123456789abcdef01234567",
    "../../etc/passwd",
    "x" * 10_000,
    "\ufffe\uffff\U0010ffff",
    "",
)


def _name(number: int) -> str:
    return NAMES[number % len(NAMES)]


def _finding(number: int, entry: registry.Entry) -> Finding:
    name = _name(number)
    found = entry.rule.finding(
        name,
        f"{name} differs",
        tensors=(name, "model.norm.weight") * (number % 30),
        expected=name if number % 3 else 1e-6,
        observed=[name, {name: None}] if number % 2 else float("nan"),
        evidence=f"config.json: {name}",
    )
    places = (Place("a b/config.json", 7), Place(name or "x", number), Place("/abs/x"), Place("hf://org/name@rev/x"))
    return replace(found, places=places[number % 5 :], also=(name, "decoder.final_norm") if number % 4 == 0 else ())


FINDINGS = tuple(_finding(number, entry) for number, entry in enumerate(registry.entries()))
SUPPRESSED = tuple(
    Suppressed(f, ("waiver", "baseline")[i % 2], _name(i + 1), _name(i + 2), "2027-01-31" if i % 3 else "")  # type: ignore[arg-type]
    for i, f in enumerate(FINDINGS)
)
ROWS = tuple(
    ContractRow(
        name or "decoder.x", {"declared": Statement(name, name, "a"), "stored": Statement(1, name, "b")}, agrees
    )
    for name in NAMES
    for agrees in (True, False, None)
)
EVERY_RULE = samples.report(
    verdict="rejected",
    subject=replace(samples.SUBJECT, source=NAMES[2], revision="0" * 40, hashes={"a b": "1" * 64}),
    contract=(*samples.ROWS, *ROWS),
    findings=registry.ordered(FINDINGS),
    suppressed=SUPPRESSED,
    rules=documentation.texts(),
)

# The long one is in EVERY_RULE; here it would fill the screen of whoever reads a failure.
texts = st.text(st.characters(), max_size=12) | st.sampled_from([name for name in NAMES if len(name) < 200])
values = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.lists(texts, max_size=2)
places = st.builds(Place, texts, st.integers(0, 10**6))
findings = st.builds(
    Finding,
    st.from_regex(r"\A[A-Z][0-9]{3}\Z"),
    st.sampled_from(["epsilon-mismatch", "missing-key"]),
    st.sampled_from(["error", "warning", "note"]),
    texts,
    texts,
    st.lists(texts, max_size=3).map(tuple),
    values,
    values,
    texts,
    texts,
    st.lists(st.integers(1, 99), max_size=2, unique=True).map(tuple),
    st.lists(places, max_size=3).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
)
suppressed = st.builds(Suppressed, findings, st.sampled_from(["waiver", "baseline"]), texts, texts, texts)
statements = st.builds(Statement, values, texts, texts, st.booleans(), st.sampled_from(["", "0-3, 7"]))
rows = st.builds(
    ContractRow, texts, st.dictionaries(st.sampled_from(WITNESSES), statements, max_size=3), st.none() | st.booleans()
)
subjects = st.builds(replace, st.just(samples.SUBJECT), source=texts, format=st.sampled_from(["safetensors", "module"]))
reports: st.SearchStrategy[Report] = st.builds(
    samples.report,
    verdict=st.sampled_from(["accepted", "rejected", "unverified"]),
    subject=subjects,
    contract=st.lists(rows, max_size=4).map(tuple),
    findings=st.lists(findings, max_size=4).map(tuple),
    suppressed=st.lists(suppressed, max_size=2).map(tuple),
    manifest=st.none() | st.just(samples.LLAMA),
)
