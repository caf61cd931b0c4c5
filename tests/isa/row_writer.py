"""Reads csrc/isa/table/*.def and writes random legal assembly for a row."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).resolve().parents[2] / "csrc" / "isa" / "table"
LINE = re.compile(r'ROW\((\w+),\s*(\w+),\s*(0x\w+),\s*(\w+),\s*"([^"]*)"(?:,\s*(.*))?\)')
PAIRS = (
    "b64",
    "i64",
    "u64",
    "f64",
    "pk_f32",
    "vgpr_pk_f32",
    "pk_b32",
    "mask",
    "vaddr",
    "saddr",
    "sbase",
    "reg64",
)
DWORDS = dict.fromkeys(PAIRS, 2) | {
    "b96": 3,
    "b128": 4,
    "srsrc": 4,
    "b192": 6,
    "b256": 8,
    "b512": 16,
    "b1024": 32,
}
HALF_TYPES = ("f16", "i16", "u16", "b16", "bf16")
SIGNED = {"f16", "bf16", "f32", "f64", "pk_f16", "pk_bf16", "pk_f32", "vgpr_pk_f32"}


class Operand(NamedTuple):
    type: str
    dwords: int
    marks: str


class Row(NamedTuple):
    mnemonic: str
    encoding: str
    number: int
    targets: tuple
    destinations: tuple
    sources: tuple
    modifiers: frozenset


def parse_operand(word):
    name = word.rstrip("+?!")
    kind, _, dwords = name.partition(":")
    return Operand(kind, int(dwords or DWORDS.get(kind, 1)), word[len(name) :])


def read_rows():
    rows = []
    for path in sorted(TABLE.glob("*.def")):
        for line in path.read_text().splitlines():
            match = LINE.fullmatch(line)
            assert match or not line.startswith("ROW"), line
            if not match:
                continue
            mnemonic, encoding, number, targets, operands, modifiers = match.groups()
            destinations, sources = operands.partition("|")[0].split("=")
            rows.append(
                Row(
                    mnemonic,
                    encoding,
                    int(number, 16),
                    ("gfx942", "gfx950") if targets == "both" else (targets,),
                    tuple(parse_operand(word.strip()) for word in destinations.split(",") if word.strip()),
                    tuple(parse_operand(word.strip()) for word in sources.split(",") if word.strip()),
                    frozenset(re.findall(r"\w+", (modifiers or "").replace("broadcast", "cbsz abid blgp"))),
                )
            )
    return rows


def span(letter, first, dwords):
    return f"{letter}{first}" if dwords == 1 else f"{letter}[{first}:{first + dwords - 1}]"


class Writer:
    """Writes random legal text of one row for one target. Some texts may be rejected by the assembler."""

    def __init__(self, row, target, generator: random.Random):
        self.row, self.target, self.random = row, target, generator
        self.scalar = None  # one SGPR per vector instruction: the constant bus has one port

    def chance(self, probability=0.5):
        return self.random.random() < probability

    def vgpr(self, dwords, letter="v"):
        first = self.random.randrange(0, 257 - dwords)
        return span(letter, first & ~1 if dwords > 1 else first, dwords)

    def sgpr(self, dwords, specials=True):
        if specials and dwords == 1 and self.chance(0.2):
            return self.random.choice(["vcc_lo", "vcc_hi", "ttmp7", "flat_scratch_lo", "xnack_mask_hi"])
        if specials and dwords == 2 and self.chance(0.2):
            return self.random.choice(["vcc", "ttmp[4:5]", "flat_scratch", "xnack_mask"])
        alignment = 1 if dwords == 1 else 2 if dwords == 2 else 4
        return span("s", self.random.randrange(0, 102 - dwords) // alignment * alignment, dwords)

    def constant(self, wide=False):
        turn = self.random.choice(["0", "1", "64", "-1", "-16", "0.5", "-1.0", "4.0", "inverse"])
        return turn if turn != "inverse" else "0.15915494309189532" if wide else "0.15915494"

    def literal(self, kind):
        return hex(self.random.randrange(65, 1 << (16 if kind in HALF_TYPES else 31)))

    def scalar_source(self, operand):
        if self.chance(0.15):
            return self.constant(operand.dwords == 2)
        if self.chance(0.1) and operand.dwords == 1:
            return self.random.choice(["m0", "exec_lo", "src_scc", "src_shared_base", "exec_hi", "src_vccz"])
        if self.chance(0.1) and operand.dwords == 2:
            return self.random.choice(["exec", "src_private_limit"])
        return self.sgpr(operand.dwords)

    def vector_source(self, operand, only_vgpr=False):
        if operand.type == "agpr":
            return self.vgpr(operand.dwords, "a")
        if operand.type == "sgpr":
            return self.sgpr(1, specials=False) if self.chance(0.7) else "m0" if self.chance() else "5"
        if operand.type == "mask":
            return self.scalar or self.sgpr(2)
        if only_vgpr or operand.dwords > 2 or operand.type.startswith("vgpr") or self.chance(0.6):
            return self.vgpr(operand.dwords)
        if self.chance(0.4):
            return self.constant(operand.dwords == 2 and operand.type != "pk_f32")
        if self.scalar is None:
            self.scalar = self.sgpr(operand.dwords)
            return self.scalar
        return self.vgpr(operand.dwords)

    def bits(self, count):
        return ",".join(self.random.choice("01") for _ in range(count))

    def output_modifiers(self, omod=True):
        text = ""
        if "clamp" in self.row.modifiers and self.chance():
            text += " clamp"
        if omod and "omod" in self.row.modifiers and self.chance():
            text += self.random.choice([" mul:2", " mul:4", " div:2"])
        return text

    def signed(self, text, operand):
        if operand.type not in SIGNED or "no_signs" in self.row.modifiers:
            return text
        if text[0] not in "vsat":  # neg() of a constant is folded into it by the assembler
            return text
        if self.chance(0.3):
            text = f"|{text}|"
        return "-" + text if self.chance(0.3) else text

    def joined(self, name, operands, tail=""):
        return name + (" " + ", ".join(operands) if operands else "") + tail

    def immediate(self, kind):
        value = self.random.choice([0, 1, 64, 65, self.random.randrange(1 << 16)])
        if kind == "label":
            return str(value - (1 << 16) if value >= 1 << 15 else value)
        if kind == "gpr_idx":
            return str(value & 15)
        if kind == "probe":
            return str(value & 127)
        return hex(value)

    # One method per encoding. Each returns a list of texts, one per form that the row has.

    def scalar_texts(self):
        operands = []

        def is_register_only(operand):
            return self.row.encoding == "sopk" or operand.type.startswith("reg")

        for operand in self.row.destinations + self.row.sources:
            if operand.type in ("imm", "uimm", "label", "waitcnt", "hwreg", "sendmsg", "gpr_idx"):
                operands.append(self.immediate(operand.type))
            elif operand.type == "literal":
                operands.append(self.literal("b32"))
            elif operand in self.row.destinations or is_register_only(operand):
                operands.append(self.sgpr(operand.dwords))
            else:
                operands.append(self.scalar_source(operand))
        registers = [i for i, o in enumerate(self.row.sources) if o.type[0] in "biuf"]
        texts = [self.joined(self.row.mnemonic, operands)]
        if self.row.encoding in ("sop1", "sop2", "sopc") and registers:
            operands[len(self.row.destinations) + registers[0]] = self.literal("b32")
            texts.append(self.joined(self.row.mnemonic, operands))
        return texts

    def smem_texts(self):
        texts = []
        for offset in ("register", "immediate", "both"):
            operands = []
            for operand in self.row.destinations + self.row.sources:
                if operand.type == "probe":
                    operands.append(self.immediate("probe"))
                elif operand.type == "soffset":
                    is_buffer = any(o.type == "srsrc" for o in self.row.sources)
                    value = self.random.randrange(0 if is_buffer else -(1 << 20), 1 << 20)
                    texts_of = {"register": "s5", "immediate": hex(value), "both": f"s7 offset:{hex(value)}"}
                    operands.append(texts_of[offset])
                else:
                    operands.append(self.sgpr(operand.dwords, specials=operand.type != "sbase"))
            glc = " glc" if len(operands) == 3 and "probe" not in operands[0] and self.chance() else ""
            texts.append(self.joined(self.row.mnemonic, operands, glc))
        return texts

    def vector_short_texts(self):
        row, texts = self.row, []
        has_vop3 = "no_vop3" not in row.modifiers
        all_operands = row.destinations + row.sources

        def operands(short, literal=False, plain=False, signs=False):
            self.scalar, out, seen_source = None, [], False
            for operand in all_operands:
                is_destination = len(out) < len(row.destinations)
                if operand.type == "mask" and short:
                    text = "vcc"
                elif operand.type.startswith("literal"):
                    text = self.literal("f16" if operand.type == "literal16" else "f32")
                elif operand.type == "sgpr" and is_destination:
                    text = self.sgpr(1)
                elif is_destination and operand.type == "mask":
                    text = self.sgpr(2)
                elif is_destination:
                    text = self.vgpr(operand.dwords, "a" if operand.type == "agpr" else "v")
                elif short and seen_source:
                    text = self.vgpr(operand.dwords)
                elif literal and not seen_source and operand.type not in ("vgpr", "agpr"):
                    text, seen_source = self.literal(operand.type), True
                else:
                    text, seen_source = self.vector_source(operand, only_vgpr=plain), True
                out.append(self.signed(text, operand) if signs and not is_destination else text)
            return out

        name = row.mnemonic
        texts.append(self.joined(name + ("_e32" if has_vop3 and all_operands else ""), operands(True)))
        if row.sources and not any(o.type in ("literal", "literal16", "vgpr", "agpr") for o in row.sources):
            texts.append(self.joined(name + "_e32", operands(True, literal=True)))
        if has_vop3:
            tail = self.fetch() + self.output_modifiers()
            texts.append(self.joined(name + "_e64", operands(False, signs=True), tail))
        if "dpp" in row.modifiers or "dpp_broadcast" in row.modifiers:
            values = operands(True, plain=True, signs=True)
            texts.append(self.joined(name + ("_dpp" if all_operands else ""), values, self.dpp()))
        if "sdwa" in row.modifiers or "sdwa_source" in row.modifiers:
            texts.append(self.sdwa(operands))
        return texts

    def fetch(self):
        if "fetch" not in self.row.modifiers:
            return ""
        return self.random.choice(["", " bound_ctrl:1", " fi:1", " bound_ctrl:1 fi:1"])

    def dpp(self):
        if "dpp_broadcast" in self.row.modifiers:
            control = f"row_newbcast:{self.random.randrange(16)}"
        else:
            amount = self.random.randrange(1, 16)
            quad = ",".join(self.random.choice("0123") for _ in range(4))
            controls = (
                f"quad_perm:[{quad}] row_shl:{amount} row_shr:{amount} row_ror:{amount} row_newbcast:{amount}"
            )
            controls += " wave_shl:1 wave_rol:1 wave_shr:1 wave_ror:1 row_mirror row_half_mirror"
            control = self.random.choice((controls + " row_bcast:15 row_bcast:31").split())
        masks = f" row_mask:{hex(self.random.randrange(16))} bank_mask:{hex(self.random.randrange(16))}"
        return f" {control}{masks}" + (" bound_ctrl:1" if self.chance() else "")

    def sdwa(self, operands):
        row = self.row
        values = operands(True, plain=True)
        first = len(row.destinations)
        if row.encoding == "vopc" and self.chance():
            values[0] = self.sgpr(2)
        sources = [o for o in row.sources if o.type != "mask"]
        for i, operand in enumerate(sources):
            if i == 0 and self.chance(0.3):
                values[first] = self.sgpr(1)
            if row.mnemonic == "v_pk_fmac_f16":
                continue  # LLVM encodes neg and abs of its SDWA form but does not print them
            if operand.type in SIGNED:
                values[first + i] = self.signed(values[first + i], operand)
            elif "sdwa" in row.modifiers and self.chance(0.3):
                values[first + i] = f"sext({values[first + i]})"
        selects = ["BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD"]
        tail = ""
        if row.encoding != "vopc":
            tail += " clamp" if self.chance() else ""
            if row.destinations[0].type in SIGNED and "omod" in row.modifiers and self.chance():
                tail += " mul:2"
            if "sdwa" in row.modifiers:
                tail += f" dst_sel:{self.random.choice(selects)} dst_unused:"
                tail += self.random.choice(["UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"])
        for i in range(len(sources)):
            tail += f" src{i}_sel:{self.random.choice(selects)}"
        return self.joined(row.mnemonic + "_sdwa", values, tail)

    def vector_long_texts(self):
        row = self.row
        operands = []
        for operand in row.destinations:
            if operand.type == "sgpr":
                operands.append(self.sgpr(1))
            else:
                operands.append(self.sgpr(2) if operand.type == "mask" else self.vgpr(operand.dwords))
        takes_absolute = row.encoding != "vop3_sdst"
        for operand in row.sources:
            text = self.vector_source(operand)
            if row.encoding == "vop3" or "mix" in row.modifiers:
                text = self.signed(text, operand)
            elif not takes_absolute and operand.type in SIGNED and text[0] in "vs" and self.chance(0.3):
                text = "-" + text
            operands.append(text)
        count, tail = len(row.sources), ""
        if "bitop3" in row.modifiers:
            tail += f" bitop3:{hex(self.random.randrange(256))}"
        if row.encoding == "vop3":
            if "op_sel" in row.modifiers and self.chance():
                tail += f" op_sel:[{self.bits(count + 1)}]"
            if "op_sel_bytes" in row.modifiers and self.chance():
                tail += f" op_sel:[{self.bits(4)}]"
        elif row.encoding == "vop3p":
            if "op_sel" in row.modifiers:
                tail += f" op_sel:[{self.bits(count)}] op_sel_hi:[{self.bits(count)}]"
            if "neg" in row.modifiers:
                tail += f" neg_lo:[{self.bits(count)}] neg_hi:[{self.bits(count)}]"
        return [self.joined(row.mnemonic, operands, tail + self.output_modifiers())]

    def matrix_texts(self):
        row = self.row
        if "accvgpr" in row.mnemonic:
            return self.vector_long_accumulation()
        operands = [list(o) for o in row.destinations + row.sources]
        tail = ""
        if row.encoding == "mfma_scale":
            tail += f" op_sel:[{self.bits(2)},0] op_sel_hi:[{self.bits(2)},0]"
        if "f8f6f4" in row.mnemonic:
            for name, index in (("cbsz", 1), ("blgp", 2)):
                format_ = self.random.randrange(5)
                operands[index][1] = (8, 8, 6, 6, 4)[format_]
                tail += f" {name}:{format_}"
        else:
            tail += f" cbsz:{self.random.randrange(8)} abid:{self.random.randrange(16)}"
            if "blgp" in row.modifiers:
                tail += f" blgp:{self.random.randrange(8)}"
            if "neg" in row.modifiers:
                tail += f" neg:[{self.bits(3)}]"
        accumulator = self.random.choice("va")
        values = [self.vgpr(operands[0][1], accumulator)]
        values += [self.vgpr(o[1], self.random.choice("va")) for o in operands[1:3]]
        if row.mnemonic.startswith("v_smfmac"):
            values.append(self.vgpr(1))
        elif self.chance(0.3):
            values.append(self.constant("f64" in row.mnemonic))
        else:
            values.append(values[0] if self.chance(0.3) else self.vgpr(operands[3][1], accumulator))
        values += [self.vgpr(1) for _ in operands[4:]]
        return [self.joined(row.mnemonic, values, tail)]

    def vector_long_accumulation(self):
        if self.row.mnemonic == "v_accvgpr_read_b32":
            return [self.joined(self.row.mnemonic, [self.vgpr(1), self.vgpr(1, "a")])]
        return [self.joined(self.row.mnemonic, [self.vgpr(1, "a"), self.vector_source(self.row.sources[0])])]

    def ds_texts(self):
        row = self.row
        letter = self.random.choice("va") if "gds" not in row.modifiers else "v"
        operands = []
        for operand in row.destinations + row.sources:
            operands.append(self.vgpr(operand.dwords, "v" if operand.type == "addr" else letter))
        if "gds" in row.modifiers:
            operands = [span("v", self.random.randrange(0, 256, 2), 1) for _ in operands]
        tail = ""
        if "offset_pair" in row.modifiers:
            tail = f" offset0:{self.random.randrange(256)} offset1:{self.random.randrange(256)}"
        elif "swizzle" in row.modifiers:  # LLVM's text drops bits of the patterns outside these ranges
            number = self.random.randrange
            patterns = [
                0,
                number(0x8000),
                0x8000 + number(256),
                0xC000 + 32 * number(64),
                0xE000 + number(32),
            ]
            tail = f" offset:{self.random.choice(patterns)}"
        elif row.destinations or row.sources or "gds" in row.modifiers:
            tail = f" offset:{self.random.choice([0, self.random.randrange(1 << 16)])}"
        return [self.joined(row.mnemonic, operands, tail + (" gds" if "gds" in row.modifiers else ""))]

    def cache_bits(self, with_sc0=True):
        names = (["sc0"] if with_sc0 else []) + ["nt", "sc1"]
        if self.row.encoding in ("flat", "global") and self.row.mnemonic.endswith("_f64"):
            names.remove("sc1")  # LLVM prints but does not encode it on returning f64 atomics
        return "".join(f" {name}" for name in names if self.chance(0.3))

    def buffer_texts(self):
        row, texts = self.row, []
        if not row.sources:
            return [row.mnemonic + self.random.choice(["", " sc0", " sc1", " sc0 sc1"])]
        data = next(o for o in row.destinations + row.sources if o.type[0] == "b")
        modes = [("", 0), (" offen", 1), (" idxen", 1), (" idxen offen", 2)]
        for mode, addresses in modes:
            address = self.vgpr(addresses) if addresses else "off"
            values = [self.vgpr(data.dwords, self.random.choice("va")), address, self.sgpr(4, specials=False)]
            values.append(self.random.choice(["0", "64", "-16", "s101", "m0", "vcc_lo", "0.5", "ttmp3"]))
            middle = f" dfmt:{self.random.randrange(16)}, nfmt:{self.random.randrange(8)},"
            middle = middle if row.encoding == "mtbuf" else ""
            offset = f" offset:{self.random.choice([0, 4095, self.random.randrange(4096)])}"
            tail = mode + offset + self.cache_bits()
            texts.append(f"{row.mnemonic} {', '.join(values[:3])},{middle} {values[3]}{tail}")
            if "lds" in row.modifiers and (data.dwords == 1 or self.target == "gfx950"):
                texts.append(f"{row.mnemonic} {', '.join(values[1:])}{tail} lds")
        return texts

    def flat_texts(self):
        row, texts = self.row, []
        forms = {"flat": [(2, None)], "global": [(2, "off"), (1, "saddr")]}
        forms["scratch"] = [(1, "off"), (0, "off"), (0, "saddr"), (1, "saddr")]
        for dwords, scalar in forms[row.encoding]:
            for returning in (False, True):
                is_atomic = any("?" in o.marks for o in row.destinations)
                if returning and not is_atomic:
                    continue
                letter, values = self.random.choice("va"), []
                for operand in row.destinations + row.sources:
                    if "?" in operand.marks and not returning:
                        continue
                    if operand.type == "vaddr":
                        values.append(self.vgpr(dwords) if dwords else "off")
                    elif operand.type == "saddr":
                        dwords_of_scalar = 1 if row.encoding == "scratch" else 2
                        values.append("off" if scalar == "off" else self.sgpr(dwords_of_scalar))
                    else:
                        values.append(self.vgpr(operand.dwords, letter))
                low = 0 if row.encoding == "flat" else -4096
                tail = f" offset:{self.random.choice([0, self.random.randrange(low, 4096)])}"
                tail += (" sc0" if returning else "") + self.cache_bits(with_sc0=not is_atomic)
                texts.append(self.joined(row.mnemonic, values, tail))
        return texts

    def texts(self):
        encoding = self.row.encoding
        if encoding.startswith("sop"):
            return self.scalar_texts()
        short, long = self.vector_short_texts, self.vector_long_texts
        writers = {"smem": self.smem_texts, "vop1": short, "vop2": short, "vopc": short, "vop3": long}
        writers |= {
            "vop3_sdst": long,
            "vop3p": long,
            "mai": self.matrix_texts,
            "mfma_scale": self.matrix_texts,
        }
        writers |= {"ds": self.ds_texts, "mubuf": self.buffer_texts, "mtbuf": self.buffer_texts}
        writers |= {"flat": self.flat_texts, "global": self.flat_texts, "scratch": self.flat_texts}
        return writers[encoding]()
