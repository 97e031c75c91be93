Loader.__del__$:
    def __del__(self) -> None: ...

__match_args__$:
    __match_args__: tuple[str, ...]
