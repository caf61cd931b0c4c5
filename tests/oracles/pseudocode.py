"""Runs AMD's pseudocode of an instruction, as the tinygrad wheel carries it from the ISA manuals, on given values.

It shares no code with the simulator. Integers are exact, floats go through tests/simulator/number_formats. Parts of the language outside
this subset (lane crossing, memory, transcendental functions, small floats) raise Unsupported.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from fractions import Fraction

from tests.simulator.number_formats import F16, F32, F64, Format

FLOATS = {16: F16, 32: F32, 64: F64}


class Unsupported(Exception):
    """The pseudocode uses something that this interpreter does not support."""


class Break(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Value:
    kind: str  # u, i, f, or b for untyped bits
    width: int
    bits: int

    @property
    def number(self) -> int:
        if self.kind == "i" and self.bits >> (self.width - 1) & 1:
            return self.bits - (1 << self.width)
        return self.bits

    @property
    def format(self) -> Format:
        if self.kind != "f" or self.width not in FLOATS:
            raise Unsupported(f"{self.kind}{self.width} as a float")
        return FLOATS[self.width]

    @property
    def real(self) -> Fraction | float:
        f = self.format
        if f.is_nan(self.bits):
            return float("nan")
        if f.is_infinite(self.bits):
            return -float("inf") if f.is_negative(self.bits) else float("inf")
        return f.value(self.bits)


def make(kind: str, width: int, number: int) -> Value:
    return Value(kind, width, number & ((1 << width) - 1))


def truth(condition: bool) -> Value:
    return Value("u", 1, int(condition))


def from_real(width: int, number: Fraction) -> Value:
    return Value("f", width, FLOATS[width].round(Fraction(number)))


_TOKEN = re.compile(
    r"\s*(?:(?P<sized>\d+'(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?)(?:U|I|F)?(?![\w(]))|(?P<cast>\d+'(?:BF|[UIFB])(?=[(;\n]|\Z))"
    r"|(?P<float>\d+\.\d+(?:F)?)|(?P<number>0x[0-9a-fA-F]+(?:ULL|LL|U)?|\d+(?:ULL|LL|U)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<symbol>\*\*|\+:|\+=|-=|<<|>>|<=|>=|==|!=|<>|&&|\|\||[-+*/%~!&|^<>=?:;,.(){}\[\]]))"
)
# Lowest first; each level is left associative.
_LEVELS = [
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!=", "<>"),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
]


class _Parser:
    def __init__(self, text: str):
        text = re.sub(r"//[^\n]*", "", text)
        self.tokens, at = [], 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if not match:
                raise Unsupported(f"token at {text[at : at + 20]!r}")
            self.tokens.append((match.lastgroup, match.group(match.lastgroup)))
            at = match.end()
        self.at = 0

    def peek(self) -> str | None:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        if self.at == len(self.tokens) or (expected and self.peek() != expected):
            raise Unsupported(f"expected {expected}, found {self.peek()}")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def statements(self, ends: tuple[str | None, ...]) -> list:
        result = []
        while True:
            while self.peek() == ";":
                self.take()
            if self.peek() in ends:
                return result
            result.append(self.statement())

    def statement(self):
        word = self.peek()
        if word == "if":
            branches = []
            while self.take() in ("if", "elsif"):
                condition = self.expression()
                self.take("then")
                branches.append((condition, self.statements(("elsif", "else", "endif"))))
                if self.peek() != "elsif":
                    break
            otherwise = []
            if self.peek() == "else":
                self.take()
                otherwise = self.statements(("endif",))
            self.take("endif")
            return "if", branches, otherwise
        if word == "for":
            self.take()
            name = self.take()
            self.take("in")
            first = self.binary(0)
            self.take(":")
            last = self.binary(0)
            self.take("do")
            body = self.statements(("endfor",))
            self.take("endfor")
            return "for", name, first, last, body
        if word == "declare":
            self.take()
            name = self.take()
            self.take(":")
            return "declare", name, self.take()
        if word == "break":
            self.take()
            return ("break",)
        places = [self.postfix()]
        operator = self.take()
        if operator not in ("=", "+=", "-="):
            raise Unsupported(f"statement with {operator}")
        value = self.expression()
        while self.peek() == "=":
            self.take()
            places.append(value)
            value = self.expression()
        if operator != "=":
            value = ("binary", operator[0], places[0], value)
        return "assign", places, value

    def expression(self):
        condition = self.binary(0)
        if self.peek() != "?":
            return condition
        self.take()
        yes = self.expression()
        self.take(":")
        return "choose", condition, yes, self.expression()

    def binary(self, level: int):
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            left = ("binary", self.take(), left, self.binary(level + 1))
        return left

    def unary(self):
        if self.peek() in ("-", "~", "!", "+"):
            return "unary", self.take(), self.unary()
        base = self.postfix()
        if self.peek() == "**":
            self.take()
            return "power", base, self.unary()
        return base

    def postfix(self):
        value = self.primary()
        while self.peek() in (".", "["):
            if self.take() == ".":
                value = ("as", value, self.take())
                continue
            first = self.binary(0)
            if self.peek() == ":":
                self.take()
                value = ("slice", value, first, self.binary(0))
            elif self.peek() == "+:":
                self.take()
                value = ("part", value, first, self.binary(0))
            else:
                value = ("bit", value, first)
            self.take("]")
        return value

    def primary(self):
        if self.at == len(self.tokens):
            raise Unsupported("end of text")
        group, text = self.tokens[self.at]
        self.at += 1
        if group == "sized":
            width, rest = text.split("'")
            kind = rest[-1].lower() if rest[-1] in "UIF" else "b"
            number = rest.rstrip("UIF")
            if kind == "f" or "." in number:
                return "value", from_real(int(width), Fraction(number))
            return "value", make(kind, int(width), int(number, 0))
        if group == "cast":
            width, kind = text.split("'")
            self.take("(")
            inner = self.expression()
            self.take(")")
            return "cast", int(width), kind.lower(), inner
        if group == "float":
            return "value", from_real(32 if text.endswith("F") else 64, Fraction(text.rstrip("F")))
        if group == "number":
            digits = text.rstrip("UL")
            return "value", make("u" if "U" in text else "i", 64 if "LL" in text else 32, int(digits, 0))
        if text == "(":
            inner = self.expression()
            self.take(")")
            return inner
        if text == "{":
            parts = [self.expression()]
            while self.peek() == ",":
                self.take()
                parts.append(self.expression())
            self.take("}")
            return "join", parts
        if group == "name":
            if self.peek() != "(":
                return "name", text
            self.take()
            arguments = []
            while self.peek() != ")":
                arguments.append(self.expression())
                if self.peek() == ",":
                    self.take()
            self.take(")")
            return "call", text, arguments
        raise Unsupported(f"a value that starts with {text}")


def _type(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"([uifb])(\d+)", text)
    if not match:
        raise Unsupported(f"type {text}")
    return match[1], int(match[2])


class Machine:
    """Variables by name; S0..S2, D0, VCC, EXEC, SCC are ordinary ones. laneId is 0."""

    def __init__(self, **variables: Value):
        nearest = {"ROUND_MODE": make("u", 2, 0), "ROUND_NEAREST_EVEN": make("u", 2, 0)}
        self.variables = {"laneId": make("u", 32, 0), **nearest, **variables}

    def run(self, statements: list) -> None:
        for statement in statements:
            getattr(self, "_" + statement[0])(*statement[1:])

    # ---- Statements.

    def _if(self, branches, otherwise) -> None:
        for condition, body in branches:
            if self.value(condition).bits:
                return self.run(body)
        return self.run(otherwise)

    def _for(self, name, first, last, body) -> None:
        low, high = self.value(first), self.value(last)
        for number in range(low.number, high.number + 1):
            self.variables[name] = make(low.kind, max(low.width, 32), number)
            try:
                self.run(body)
            except Break:
                return

    def _break(self) -> None:
        raise Break

    def _declare(self, name: str, text: str) -> None:
        match = re.fullmatch(r"(\d+)'([UIFB])", text)
        if not match:
            raise Unsupported(f"declare {text}")
        self.variables[name] = make(match[2].lower(), int(match[1]), 0)

    def _assign(self, places, expression) -> None:
        value = self.value(expression)
        for place in reversed(places):
            self.store(place, value)

    def store(self, place, value: Value) -> None:
        if place[0] == "join":
            at = 0
            for part in reversed(place[1]):
                width = _type(part[2])[1] if part[0] == "as" else self.value(part).width
                self.store(part, make("b", width, value.bits >> at))
                at += width
            return
        if place[0] == "name":
            old = self.variables.get(place[1])
            if old is None or place[1] == "tmp":
                self.variables[place[1]] = value
            else:
                self.variables[place[1]] = make(
                    old.kind, old.width, self.convert(value, old.kind, old.width).bits
                )
            return
        name, low, width, kind = self.location(place)
        old = self.variables.get(name, make("b", 0, 0))
        mask = ((1 << width) - 1) << low
        if kind:
            value = self.convert(value, kind, width)
        bits = old.bits & ~mask | (value.bits << low & mask)
        total = max(old.width, low + width)
        self.variables[name] = Value(old.kind if old.width >= low + width else kind or "b", total, bits)

    def location(self, place) -> tuple[str, int, int, str]:
        """(variable, first bit, bits, kind) of an assignable place."""
        what = place[0]
        if what == "name":
            old = self.variables.get(place[1])
            return place[1], 0, old.width if old else 32, ""
        if what == "as":
            name, low, width, _ = self.location(place[1])
            kind, bits = _type(place[2])
            return name, low, min(bits, width) if place[1][0] in ("slice", "part", "bit") else bits, kind
        if what == "bit":
            name, low, _, _ = self.location(place[1])
            return name, low + self.value(place[2]).number, 1, "u"
        if what == "slice":
            name, low, _, _ = self.location(place[1])
            high, first = self.value(place[2]).number, self.value(place[3]).number
            if high < first:
                raise Unsupported("assignment to reversed bits")
            return name, low + first, high - first + 1, ""
        raise Unsupported(f"assignment to {what}")

    # ---- Expressions.

    def value(self, expression) -> Value:
        return getattr(self, "_v_" + expression[0])(*expression[1:])

    def _v_value(self, value: Value) -> Value:
        return value

    def _v_name(self, name: str) -> Value:
        if name == "INF":
            return Value("f", 64, F64.infinity)
        if name in ("NAN", "PI"):
            raise Unsupported(name)
        if name not in self.variables:
            raise Unsupported(f"variable {name}")
        return self.variables[name]

    def _v_as(self, inner, kind: str) -> Value:
        if inner == ("name", "WAVE_MODE") and kind == "IEEE":
            return truth(True)  # as compute kernels have it
        if inner == ("name", "INF"):
            return Value("f", _type(kind)[1], FLOATS[_type(kind)[1]].infinity)
        if inner[0] == "name" and inner[1] in ("NAN", "DENORM", "MAX_FLOAT"):
            raise Unsupported(inner[1])
        value = self.value(inner)
        letter, width = _type(kind)
        if letter == value.kind == "f" and width != value.width:
            raise Unsupported("a float read as one of another width")
        number = value.number if value.kind == "i" and letter == "i" else value.bits
        return make(letter, width, number)

    def _v_bit(self, inner, index) -> Value:
        return make("u", 1, self.value(inner).bits >> self.value(index).number)

    def _v_slice(self, inner, high, low) -> Value:
        value, first, last = self.value(inner), self.value(low).number, self.value(high).number
        if last < first:
            reversed_bits = sum(
                (value.bits >> (last + i) & 1) << (first - last - i) for i in range(first - last + 1)
            )
            return make("u", first - last + 1, reversed_bits)
        return make("u", last - first + 1, value.bits >> first)

    def _v_part(self, inner, first, width) -> Value:
        bits = self.value(width).number
        return make("u", bits, self.value(inner).bits >> self.value(first).number)

    def _v_join(self, parts) -> Value:
        bits = width = 0
        for part in reversed(parts):
            value = self.value(part)
            bits |= value.bits << width
            width += value.width
        return Value("b", width, bits)

    def _v_choose(self, condition, yes, no) -> Value:
        return self.value(yes if self.value(condition).bits else no)

    def _v_cast(self, width: int, kind: str, inner) -> Value:
        if kind == "f" and inner[0] == "value" and inner[1].kind in "ui" and inner[1].bits > 0x1000:
            return make("f", width, inner[1].bits)  # the pattern of a NaN
        return self.convert(self.value(inner), kind, width)

    def convert(self, value: Value, kind: str, width: int) -> Value:
        if value.kind == "p":
            return value
        if kind == "bf":
            raise Unsupported("bf16")
        if kind == "f" and value.kind == "f":
            if value.width == width:
                return value
            f, target = value.format, FLOATS[width]
            if f.is_nan(value.bits):  # a signaling one stays signaling: the text checks after widening
                sign, shift = (
                    target.sign_bit if f.is_negative(value.bits) else 0,
                    target.mantissa_bits - f.mantissa_bits,
                )
                payload = value.bits & ((1 << f.mantissa_bits) - 1)
                payload = payload << shift if shift > 0 else payload >> -shift | target.quiet_bit
                return Value("f", width, sign | target.infinity | payload)
            if f.is_infinite(value.bits):
                return Value(
                    "f", width, target.infinity | (target.sign_bit if f.is_negative(value.bits) else 0)
                )
            return Value(
                "f", width, target.round(f.value(value.bits), negative_zero=f.is_negative(value.bits))
            )
        if kind == "f" and value.kind in "ui":
            return from_real(width, Fraction(value.number))
        if value.kind == "f" and kind in "ui":
            raise Unsupported("a float cast to an integer")
        return make(kind, width, value.number)

    def _v_unary(self, operator: str, inner) -> Value:
        value = self.value(inner)
        if operator == "+":
            return value
        if operator == "!":
            return truth(not value.bits)
        if operator == "~":
            return make(value.kind, value.width, ~value.bits)
        if value.kind == "f":
            return Value("f", value.width, value.format.negate(value.bits))
        return make(value.kind, value.width, -value.number)

    def _v_binary(self, operator: str, left, right) -> Value:
        a, b = self.value(left), self.value(right)
        if operator in ("&&", "||"):
            return truth(bool(a.bits) and bool(b.bits) if operator == "&&" else bool(a.bits) or bool(b.bits))
        if "f" in (a.kind, b.kind):
            return self.float_binary(operator, a, b)
        if operator in ("<<", ">>"):
            count = b.bits
            number = a.number << count if operator == "<<" else a.number >> count
            return make(a.kind, max(a.width, 32), number)
        # As in C, nothing is computed in less than 32 bits; a narrower destination truncates the result.
        kind = "i" if a.kind == b.kind == "i" else "u"
        width = max(a.width, b.width, 32 if operator in "+-*" else 1)
        x, y = (
            (a.number, b.number)
            if kind == "i"
            else (a.number & ((1 << width) - 1), b.number & ((1 << width) - 1))
        )
        compare = {
            "==": x == y,
            "!=": x != y,
            "<>": x != y,
            "<": x < y,
            "<=": x <= y,
            ">": x > y,
            ">=": x >= y,
        }
        if operator in compare:
            return truth(compare[operator])
        if operator in ("/", "%"):
            raise Unsupported("integer division")
        results = {"+": x + y, "-": x - y, "*": x * y, "&": x & y, "|": x | y, "^": x ^ y}
        return make(kind, width, results[operator])

    def _v_power(self, base, exponent) -> Value:
        """2 to a power, exact: kind p, whose number is the exponent."""
        if self.value(base).real != 2:
            raise Unsupported("a power of something else than 2")
        return Value("p", 64, self.value(exponent).number & ((1 << 64) - 1))

    def float_binary(self, operator: str, a: Value, b: Value) -> Value:
        if operator in ("==", "!=", "<>", "<", "<=", ">", ">="):
            if a.kind != "f" or b.kind != "f":
                raise Unsupported("a float compared with an integer")
            x, y = a.real, b.real
            unordered = x != x or y != y
            # `<>` is less than or greater than; `!=` of a NaN is true.
            answers = {
                "==": x == y,
                "!=": x != y,
                "<>": x != y and not unordered,
                "<": x < y,
                "<=": x <= y,
                ">": x > y,
                ">=": x >= y,
            }
            return truth(answers[operator] if operator == "!=" or not unordered else False)
        if operator == "*" and "p" in (a.kind, b.kind):
            number, power = (a, b) if b.kind == "p" else (b, a)
            return _ldexp(number, Value("i", 64, power.bits))
        if (a.kind, a.width) != (b.kind, b.width):
            raise Unsupported("arithmetic of two formats")
        f = a.format
        if operator == "+":
            return Value("f", a.width, f.add(a.bits, b.bits))
        if operator == "-":
            other = b.bits if f.is_nan(b.bits) else f.negate(b.bits)
            return Value("f", a.width, f.add(a.bits, other))
        if operator == "*":
            return Value("f", a.width, f.multiply(a.bits, b.bits))
        raise Unsupported(f"float {operator}")

    def _v_call(self, name: str, arguments) -> Value:
        values = [self.value(argument) for argument in arguments]
        if (function := _FUNCTIONS.get(name)) is not None:
            return function(*values)
        text = text_of(name) if name.startswith("v_") else None
        if text is None:
            raise Unsupported(f"{name}()")
        after = run(text, D0=make("b", 64, 0), **{f"S{i}": value for i, value in enumerate(values)})
        return make(values[0].kind, values[0].width, after["D0"].bits)


def _exponent(a: Value) -> Value:
    return make("i", 32, a.bits >> a.format.mantissa_bits & ((1 << a.format.exponent_bits) - 1))


def _signext_from_bit(a: Value, bits: Value) -> Value:
    count = bits.number
    if count == 0:
        return make("i", a.width, 0)
    number = a.bits & ((1 << count) - 1)
    return make("i", a.width, number - (1 << count) if number >> (count - 1) & 1 else number)


def _to_integer(kind: str, width: int):
    def function(a: Value) -> Value:
        number = a.real
        low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if kind == "i" else (0, (1 << width) - 1)
        if number != number:
            return make(kind, width, 0)
        return make(kind, width, int(min(max(number, low), high)))

    return function


def _to_float(width: int):
    def function(a: Value) -> Value:
        result = Machine().convert(a, "f", width)
        f = result.format
        return Value("f", width, f.quiet(result.bits)) if f.is_nan(result.bits) else result

    return function


def _extend(kind: str, width: int):
    return lambda a: make(kind, width, Value(kind, a.width, a.bits).number)


def _round_down(a: Value) -> Value:
    f = a.format
    if not f.is_finite(a.bits):
        return Value("f", a.width, f.quiet(a.bits)) if f.is_nan(a.bits) else a
    number = f.value(a.bits)
    return Value(
        "f",
        a.width,
        f.round(Fraction(number.numerator // number.denominator), negative_zero=f.is_negative(a.bits)),
    )


def _truncate(a: Value) -> Value:
    f = a.format
    if not f.is_finite(a.bits):
        return Value("f", a.width, f.quiet(a.bits)) if f.is_nan(a.bits) else a
    number = f.value(a.bits)
    return Value("f", a.width, f.round(Fraction(int(number)), negative_zero=f.is_negative(a.bits)))


def _fma(a: Value, b: Value, c: Value) -> Value:
    f = a.format
    return Value("f", a.width, f.fma(a.bits, b.bits, c.bits))


def _mantissa(a: Value) -> Value:
    """The mantissa in [1/2, 1), with the sign; zero stays zero."""
    f = a.format
    number = f.value(a.bits)
    while number and not Fraction(1, 2) <= abs(number) < 1:
        number *= 2 if abs(number) < 1 else Fraction(1, 2)
    return Value("f", a.width, f.round(number, negative_zero=f.is_negative(a.bits)))


def _to_norm(is_signed: bool):
    def function(a: Value) -> Value:
        low, top = (-1, 32767) if is_signed else (0, 65535)
        real = a.real
        if real != real:
            return make("b", 16, 0)
        return make("b", 16, round(Fraction(min(max(real, low), 1)) * top))

    return function


def _ldexp(a: Value, n: Value) -> Value:
    f = a.format
    if not f.is_finite(a.bits) or f.is_zero(a.bits):
        return Value("f", a.width, f.quiet(a.bits)) if f.is_nan(a.bits) else a
    power = max(min(n.number, 5000), -5000)
    return Value(
        "f", a.width, f.round(f.value(a.bits) * Fraction(2) ** power, negative_zero=f.is_negative(a.bits))
    )


def _absolute_difference(a: Value, b: Value) -> Value:
    return make("u", 32, abs(a.bits - b.bits))


def _byte_permute(data: Value, select: Value) -> Value:
    s = select.bits & 0xFF
    if s >= 13:
        return make("u", 8, 0xFF)
    if s == 12:
        return make("u", 8, 0)
    if s >= 8:
        return make("u", 8, 0xFF if data.bits >> (16 * (s - 8) + 15) & 1 else 0)
    return make("u", 8, data.bits >> (8 * s))


def _sum_of_differences(masked: bool):
    def function(a: Value, b: Value, c: Value) -> Value:
        total = c.bits
        for shift in range(0, 32, 8):
            x, y = a.bits >> shift & 0xFF, b.bits >> shift & 0xFF
            total += 0 if masked and y == 0 else abs(x - y)
        return make("u", 32, total)

    return function


def _choose(kind: str, width: int, pick):
    return lambda *values: make(kind, width, pick(Value(kind, width, v.bits).number for v in values))


_FUNCTIONS = {
    "signext": lambda a: make("i", 64, Value("i", a.width, a.bits).number),
    "signext_from_bit": _signext_from_bit,
    "exponent": _exponent,
    "sign": lambda a: truth(a.format.is_negative(a.bits)),
    "isNAN": lambda a: truth(a.format.is_nan(a.bits)),
    "isSignalNAN": lambda a: truth(a.format.is_signaling(a.bits)),
    "isQuietNAN": lambda a: truth(a.format.is_nan(a.bits) and not a.format.is_signaling(a.bits)),
    "cvtToQuietNAN": lambda a: Value("f", a.width, a.format.quiet(a.bits)),
    "abs": lambda a: (
        Value("f", a.width, a.bits & ~a.format.sign_bit)
        if a.kind == "f"
        else make(a.kind, a.width, abs(a.number))
    ),
    "floor": _round_down,
    "trunc": _truncate,
    "fma": _fma,
    "ldexp": _ldexp,
    "mantissa": _mantissa,
    "f16_to_snorm": _to_norm(True),
    "f32_to_snorm": _to_norm(True),
    "f16_to_unorm": _to_norm(False),
    "f32_to_unorm": _to_norm(False),
    "ABSDIFF": _absolute_difference,
    "BYTE_PERMUTE": _byte_permute,
    "v_sad_u8": _sum_of_differences(False),
    "v_msad_u8": _sum_of_differences(True),
    "bitCount": lambda a: make("i", 32, a.bits.bit_count()),
    "isEven": lambda a: truth(
        isinstance(a.real, Fraction) and a.real.denominator == 1 and a.real.numerator % 2 == 0
    ),
    "SAT8_SIGNED": lambda a: make("i", 8, min(max(a.number, -128), 127)),
    "SAT8": lambda a: make("u", 8, min(max(Value("i", a.width, a.bits).number, 0), 255)),
}
for _width in (16, 32, 64):
    for _source in ("u16", "i16", "u32", "i32", "f16", "f32", "f64"):
        _FUNCTIONS[f"{_source}_to_f{_width}"] = _to_float(_width)
for _kind in ("u", "i"):
    for _name in ("f16", "f32", "f64"):
        for _width in (8, 16, 32):
            _FUNCTIONS[f"{_name}_to_{_kind}{_width}"] = _to_integer(_kind, _width)
    for _width in (4, 8, 16):
        _FUNCTIONS[f"{_kind}{_width}_to_{_kind}32"] = _extend(_kind, 32)
    for _width in (16, 32):
        for _arity in ("", "3"):
            _FUNCTIONS[f"v_max{_arity}_{_kind}{_width}"] = _choose(_kind, _width, max)
            _FUNCTIONS[f"v_min{_arity}_{_kind}{_width}"] = _choose(_kind, _width, min)
_FUNCTIONS["u32_to_u16"] = lambda a: make("u", 16, min(a.bits, 0xFFFF))
_FUNCTIONS["i32_to_i16"] = lambda a: make("i", 16, min(max(Value("i", 32, a.bits).number, -32768), 32767))


@functools.cache
def _table() -> dict[str, str]:
    from tinygrad.runtime.autogen.amd.cdna.str_pcode import PCODE

    table: dict[str, str] = {}
    for operation, text in PCODE.items():
        table.setdefault(operation.name.lower(), text)
    return table


def text_of(mnemonic: str) -> str | None:
    """The pseudocode of a row, under whichever encoding the table lists it."""
    for suffix in ("", "_e64", "_e32"):
        if (text := _table().get(mnemonic + suffix)) is not None:
            return text
    return None


@functools.cache
def program(text: str) -> list:
    if "n <= -128" in text:
        text = text.replace("SAT8", "SAT8_SIGNED")
    # Functions that the text itself defines are built in here under the same names.
    text = re.sub(
        r"(?m)^(ABSDIFF|SAT8|SAT8_SIGNED|BYTE_PERMUTE)\s*=\s*lambda.*?(?:;\n|\Z)", "", text, flags=re.DOTALL
    )
    return _Parser(text).statements((None,))


def run(text: str, **variables: Value) -> dict[str, Value]:
    machine = Machine(**variables)
    machine.run(program(text))
    return machine.variables
