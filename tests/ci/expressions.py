"""GitHub's expressions, as far as action.yml has them: `${{ a.b == 'c' && !cancelled() }}`."""

import re
from collections.abc import Callable, Mapping
from typing import Any

TOKENS = re.compile(r"\s*('(?:[^']|'')*'|[\w.-]+|==|!=|&&|\|\||[!(),])")
INSIDE = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
STATUS = re.compile(r"\b(always|cancelled|success|failure)\(")

Functions = Mapping[str, Callable[..., Any]]


class Expression:
    """One expression, read from left to right by recursive descent."""

    def __init__(self, text: str, context: Mapping[str, Any], functions: Functions) -> None:
        self.tokens = TOKENS.findall(text)
        assert re.sub(r"\s", "", "".join(self.tokens)) == re.sub(r"\s", "", text), text
        self.context, self.functions = context, functions

    def value(self) -> Any:
        """Return what all of it is."""
        result = self._any()
        assert not self.tokens, self.tokens
        return result

    def _take(self, *tokens: str) -> str | None:
        return self.tokens.pop(0) if self.tokens and self.tokens[0] in tokens else None

    def _any(self) -> Any:
        result = self._all()
        while self._take("||"):
            other = self._all()
            result = result or other
        return result

    def _all(self) -> Any:
        result = self._equal()
        while self._take("&&"):
            other = self._equal()
            result = result and other
        return result

    def _equal(self) -> Any:
        result = self._single()
        while operator := self._take("==", "!="):
            is_same = str(result).lower() == str(self._single()).lower()
            result = is_same == (operator == "==")
        return result

    def _single(self) -> Any:
        if self._take("!"):
            return not self._single()
        if self._take("("):
            result = self._any()
            assert self._take(")")
            return result
        token = self.tokens.pop(0)
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        return self._call(token) if self._take("(") else self._look_up(token)

    def _call(self, name: str) -> Any:
        arguments = []
        while not self._take(")"):
            arguments.append(self._any())
            self._take(",")
        return self.functions[name](*arguments)

    def _look_up(self, path: str) -> Any:
        value: Any = self.context
        for name in path.split("."):
            value = value.get(name, "") if isinstance(value, Mapping) else ""
        return "" if value is None else value


def filled(text: str, context: Mapping[str, Any], functions: Functions) -> str:
    """Return a text with each `${{ }}` in it replaced by its value."""

    def value(match: re.Match[str]) -> str:
        result = Expression(match[1], context, functions).value()
        return str(result).lower() if isinstance(result, bool) else str(result)

    return INSIDE.sub(value, text)


def holds(condition: str | None, context: Mapping[str, Any], functions: Functions) -> bool:
    """Whether a step with this `if:` runs: without a function of status, only after success."""
    text = (condition or "success()").strip()
    inner = INSIDE.fullmatch(text)
    text = inner[1] if inner else text
    is_due = bool(STATUS.search(text)) or functions["success"]()
    return bool(is_due and Expression(text, context, functions).value())
