"""Functions that are found by name at run time: a name that cannot be read is refused, however it is made."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.targets.cuda.forbidden import DEFAULT_FEATURES
from kerneltui.targets.cuda.policy import DEFAULT_POLICY
from kerneltui.targets.cuda.runtime import harness_source

ROOT = Path(__file__).parents[2]
SOURCES = [
    *sorted((ROOT / "kernels").glob("*/*.cu")),
    ROOT / "kerneltui" / "targets" / "cuda" / "nccl_windows.cu",
]
RED = {
    "a variable": ("f = dlsym(RTLD_DEFAULT, name);", "(name)"),
    "a string": ("cudaGetDriverEntryPointByVersion(n.c_str(), &f, 1, 0, &q);", "(n.c_str())"),
    "an older name": ('cudaGetDriverEntryPoint(b ? "a" : "c", &f, 0, &q);', '(b ? "a" : "c")'),
    "a table": ("cuGetProcAddress(names[i], &f, 12000, 0, &q);", "(names[i])"),
    "its second version": ("cuGetProcAddress_v2(names[i], &f, 12000, 0, &q);", "(names[i])"),
    "another place": ('dlvsym("cuInit", name, "v");', "(name)"),
    "too many arguments": ('dlsym(f<A, "cuInit", B>(h), name);', "cannot be read"),
    "a sum": ('dlsym(h, "xcuInit" + 1);', "cannot be read"),
    "a part": ('dlsym(h, &"xcuInit"[1]);', "cannot be read"),
    "a cast": ('dlsym(h, (const char*)"cuInit");', "cannot be read"),
    "an operator": ('dlsym(h, "cuInit"_name);', "cannot be read"),
    "nothing": ("dlsym();", "cannot be read"),
    "a pointer": ("auto look = &dlsym;", "other than in a call"),
    "brackets": ('(dlsym)(h, "cuInit");', "other than in a call"),
    "a type": ("decltype(dlsym) *look;", "other than in a call"),
    "an alias": ("#pragma redefine_extname look dlsym", "other than in a call"),
    "a declaration": ("void *dlsym(void *, const char *);", "(const char *)"),
    "a label": ('void *look(void *, const char *) __asm__("dl" "sym");', "binds names"),
    "assembly": (r'asm("call dl\x73ym@PLT");', "binds names"),
    "a weak reference": ('void *l() __attribute__((weakref("dlsym")));', "binds names"),
    "a version": ('void *l() __attribute__((__symver__("dlsym@GLIBC_2.34")));', "binds names"),
    "a function that looks up": ('dlsym(h, "cuGetProcAddress_v2");', "finds names"),
    "escapes": (r'dlsym(h, "cuI\x6eit");', "no plain name"),
    "an end within": (r'dlsym(h, "cuMulticastCreate\0");', "no plain name"),
    "a variable's name": ("value = getenv(name);", "(name)"),
}
GREEN = {
    "a literal": 'dlsym(RTLD_DEFAULT, "cuInit");',
    "pieces": 'dlsym(((void *)0),\n    "cu"\n    "Init");',
    "a raw text": 'cuGetProcAddress_v2(R"(cuInit)", &f, 12000, 0, &q);',
    "the driver": 'cudaGetDriverEntryPointByVersion ( "cuInit" , &f, 12000, 0, &q);',
    "its result": "cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSuccess;",
    "a message": 'fail(ctx, "cudaGetDriverEntryPointByVersion", error);',
    "another name": "my_dlsym(name); PFN_cuGetProcAddress_v12000 f; getenv_count(n);",
    "a comment": "// dlsym(RTLD_DEFAULT, name)\n/* &dlsym */",
    "a variable": 'getenv("NCCL_DEBUG");',
}
LOADING = (
    'dlopen("libcuda.so.1", RTLD_NOW);',
    'dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);',
    "dl_iterate_phdr(each, nullptr);",
    'dlsym(h, "dlopen");',
    'dlsym(h, "__libc_dlsym");',
    "cuModuleLoad(&m, path);",
    "cuModuleLoadDataEx(&m, image, 0, nullptr, nullptr);",
    "cuModuleLoadFatBinary(&m, image);",
    "cuLibraryLoadData(&l, image, 0, 0, 0, 0, 0, 0);",
    "cudaLibraryLoadFromFile(&l, path, 0, 0, 0, 0, 0, 0);",
    "cuLinkAddData(s, CU_JIT_INPUT_PTX, p, n, 0, 0, 0, 0);",
    "nvrtcCreateProgram(&p, text, 0, 0, 0, 0);",
    "nvPTXCompilerCompile(c, 0, 0);",
    "nvJitLinkAddData(h, t, d, n, s);",
    "cuGetExportTable(&t, &id);",
    "__cudaRegisterFatBinary(&mine);",
    'static char mine[] __attribute__((section(".nv_fatbin"))) = {0};',
    "PyRun_SimpleString(text);",
    "Py_CompileString(text, 0, 0);",
)
FORBIDDEN = ("cuMulticastCreate", "cuMulticastBindMem", "cuMulticastAddDevice", "cudaDeviceReset")


def preprocessed(text: str) -> str:
    """What the preprocessor would make of a kernel without macros: its lines, and whose they are."""
    return f'# 1 "/usr/include/dlfcn.h" 1\nvoid *dlsym(void *, const char *);\n# 1 "kernel.cu"\n{text}\n'


@pytest.mark.parametrize("name", RED)
def test_a_name_that_cannot_be_read_is_refused(name: str) -> None:
    text, part = RED[name]
    found = DEFAULT_POLICY.check_preprocessed(preprocessed(f"int first;\n{text}"), "kernel.cu")
    assert [f for f in found if part in f.text], found
    assert {f.rule for f in found} == {"P03"}
    assert all(f.level == "block" and f.line == 2 and "\n" not in f.text for f in found)


@pytest.mark.parametrize("name", GREEN)
def test_a_name_that_can_be_read_is_allowed(name: str) -> None:
    assert DEFAULT_POLICY.check_preprocessed(preprocessed(GREEN[name]), "kernel.cu") == ()


def test_macros_are_none_of_its_business_before_they_are_gone() -> None:
    text = '#define LOOK(name) dlsym(RTLD_DEFAULT, name)\nauto f = LOOK("cuInit");\n'
    assert DEFAULT_POLICY.check_source(text) == ()


@pytest.mark.parametrize("text", LOADING)
def test_code_that_comes_at_run_time_is_refused(text: str) -> None:
    for found in (
        DEFAULT_POLICY.check_source(f"int first;\n{text}\n"),
        DEFAULT_POLICY.check_preprocessed(preprocessed(f"int first;\n{text}"), "kernel.cu"),
    ):
        assert found and {f.rule for f in found} == {"P03"}
        assert all(f.line == 2 for f in found)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_the_kernels_of_the_library_pass(file: Path) -> None:
    text = file.read_text()
    assert DEFAULT_POLICY.check_source(text) == ()
    assert DEFAULT_POLICY.check_preprocessed(preprocessed(text), "kernel.cu") == ()


def test_the_harness_passes_but_for_captures_which_are_its_own_affair() -> None:
    text = harness_source()
    policy = DEFAULT_POLICY.without("capture_control")
    assert {f.name for f in DEFAULT_POLICY.features} - {f.name for f in policy.features} == {
        "capture_control"
    }
    assert policy.check_source(text) == ()
    assert policy.check_preprocessed(preprocessed(text), "kernel.cu") == ()
    assert {found.rule for found in DEFAULT_POLICY.check_source(text)} == {"P04"}


CALLS = (
    "dlsym(RTLD_DEFAULT, {})",
    "cuGetProcAddress_v2({}, &f, 12000, 0, &q)",
    "cudaGetDriverEntryPointByVersion({}, &f, 12000, 0, &q)",
)


@st.composite
def made_names(draw: st.DrawFn) -> tuple[str, str]:
    """A forbidden name that is put together from parts, as declarations and the argument of a call."""
    name = draw(st.sampled_from(FORBIDDEN))
    cuts = sorted(draw(st.sets(st.integers(1, len(name) - 1), min_size=1, max_size=5)))
    parts = [name[a:b] for a, b in zip([0, *cuts], [*cuts, len(name)], strict=True)]
    quoted = [f'"{part}"' for part in parts]
    way = draw(st.integers(0, 5))
    if way == 0:
        return f"std::string n = {quoted[0]}; " + "".join(
            f"n += {q}; " for q in quoted[1:]
        ), "n.c_str()"
    if way == 1:
        return "", f"(std::string({quoted[0]})" + "".join(
            f" + {q}" for q in quoted[1:]
        ) + ").c_str()"
    if way == 2:
        formats = "%s" * len(parts)
        return f'char n[64]; snprintf(n, 64, "{formats}", {", ".join(quoted)});', "n"
    if way == 3:
        letters = ", ".join(f"'{letter}'" for letter in name)
        return f"const char n[] = {{{letters}, 0}};", "n"
    if way == 4:
        key = draw(st.integers(1, 15))
        turned = "".join(f'\\x{ord(letter) ^ key:02x}" "' for letter in name)
        return f'char n[] = "{turned}"; for (char &c : n) c ^= {key};', "&n[0]"
    backwards = "".join(reversed(name))
    return f'std::string n("{backwards}"); std::reverse(n.begin(), n.end());', "n.data()"


@given(made_names(), st.sampled_from(CALLS))
def test_no_way_to_put_a_name_together_is_accepted(made: tuple[str, str], call: str) -> None:
    before, argument = made
    text = preprocessed(f"void f() {{ {before} {call.format(argument)}; }}")
    found = DEFAULT_POLICY.check_preprocessed(text, "kernel.cu")
    assert any(f.rule == "P03" and "cannot be read" in f.text for f in found), text


@given(
    st.sampled_from(FORBIDDEN),
    st.lists(st.integers(1, 10), max_size=4),
    st.sampled_from(CALLS),
    st.sampled_from(["x{:02x}", "u{:04x}", "U{:08x}", "{:03o}"]),
    st.booleans(),
)
def test_no_way_to_write_a_forbidden_name_is_accepted(
    name: str, cuts: list[int], call: str, form: str, escaped: bool
) -> None:
    places = sorted({0, *cuts, len(name)})
    parts = [name[a:b] for a, b in pairwise(places)]
    if escaped:
        parts = ["\\" + form.format(ord(parts[0][0])) + '" "' + parts[0][1:], *parts[1:]]
    literal = " ".join(f'"{part}"' for part in parts)
    text = preprocessed(f"void f() {{ {call.format(literal)}; }}")
    assert DEFAULT_POLICY.check_preprocessed(text, "kernel.cu")


# What an object file asks for, where the text says nothing of it. No kernel: the C++ compiler is enough.
OBJECTS = {
    "an alias by assembly": (
        r'asm(".macro l a b\n.globl look\nlook: jmp \\a\\b@PLT\n.endm\nl dl, sym\n");'
        'extern "C" void *look(void *, const char *); void *f(const char *n) { return look(0, n); }',
        "the symbol dlsym",
    ),
    "one version of a function": (
        r'asm(".symver look, dlopen@GLIBC_2.2.5\n");'
        'extern "C" void *look(const char *, int); void *f(const char *n) { return look(n, 1); }',
        "the symbol dlopen",
    ),
    "a weak function": (
        'extern "C" __attribute__((weak)) int PyRun_SimpleString(const char *);'
        "int f(const char *n) { return PyRun_SimpleString(n); }",
        "the symbol PyRun_SimpleString",
    ),
    "a loader": (
        'extern "C" int cuModuleLoadData(void *, const void *);'
        "int f(const char *n) { void *m; return cuModuleLoadData(&m, n); }",
        "the symbol cuModuleLoadData",
    ),
}
LITERAL = '#include <dlfcn.h>\nvoid *f() { return dlsym(RTLD_DEFAULT, "cuInit"); }\n'
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")


def compiled(text: str, folder: Path) -> tuple[Path, str]:
    """An object file and its preprocessed text."""
    source, out = folder / "kernel.cu", folder / "kernel.o"
    source.write_text(text)
    command = ["g++", "-x", "c++", "-fPIC", str(source)]
    subprocess.run([*command, "-c", "-o", str(out)], check=True)
    done = subprocess.run([*command, "-E"], check=True, capture_output=True, text=True)
    return out, done.stdout


@needs_compiler
@pytest.mark.parametrize("name", OBJECTS)
def test_what_the_text_hides_the_symbols_show(name: str, tmp_path: Path) -> None:
    text, part = OBJECTS[name]
    file, preprocessed_text = compiled(text, tmp_path)
    found = DEFAULT_POLICY.check_symbols(file, [preprocessed_text])
    assert [f.rule for f in found] == ["P03"] and part in found[0].text


@needs_compiler
def test_a_symbol_that_a_readable_call_explains_is_allowed(tmp_path: Path) -> None:
    file, text = compiled(LITERAL, tmp_path)
    assert '"cuInit"' in text and "# " in text  # a marker stands within the call
    assert DEFAULT_POLICY.check_preprocessed(text, "kernel.cu") == ()
    assert DEFAULT_POLICY.check_symbols(file, [text]) == ()
    assert DEFAULT_POLICY.check_symbols(file)[0].rule == "P03"


@pytest.mark.parametrize(
    "line",
    [
        'R"(\n# 1 "cuda.h"\n)"',
        'R"(\n#line 1 "cuda.h"\n)"',
        '"";\n\f#line 1 "cuda.h"\nconst char *u = ""',
    ],
)
def test_no_text_says_that_the_rest_is_a_header(line: str) -> None:
    text = f"const char *t = {line};\nauto f = &dlsym;\n"
    assert "P02" in {f.rule for f in DEFAULT_POLICY.check_source(text)}


def test_only_the_ends_that_the_preprocessor_knows_end_a_line() -> None:
    text = 'const char *t = R"(\f# 1 "cuda.h")";\nauto f = &dlsym;\n'
    (finding,) = DEFAULT_POLICY.check_preprocessed(preprocessed(text), "kernel.cu")
    assert finding.line == 2


def test_nothing_of_it_can_be_allowed() -> None:
    assert [f.name for f in DEFAULT_FEATURES if f.optional] == ["nvlink_multicast"]
