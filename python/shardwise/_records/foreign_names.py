"""Lists names of other loaders and data sets, with the code to write in their place."""

from __future__ import annotations

#: Options of other loaders.
OTHER_OPTIONS = {
    "num_workers": "threads=", "workers": "threads=", "num_threads": "threads=", "collate_fn": "transform=",
    "batch": "batch_size=", "bs": "batch_size=", "map": "transform=", "transforms": "transform=",
    "fn": "transform=", "map_fn": "transform=", "target_transform": "transform=", "preprocess": "transform=",
    "drop_last": 'last_batch="drop", "pad" or "wrap"', "drop_remainder": 'last_batch="drop", "pad" or "wrap"',
    "prefetch_factor": "prefetch=", "prefetch_size": "prefetch=",
    "buffer_size": "prefetch= (all records are shuffled)",
    "sampler": "a source's take() and filter(), and order=", "batch_sampler": "batch_size= and order=",
    "worker_init_fn": "transform=, which is given random numbers", "generator": "seed=", "rng": "seed=",
    "key": "seed=", "num_epochs": "epochs=", "repeat": "epochs=", "shard_options": "mesh= and rank=",
    "world_size": "mesh= and rank=", "num_replicas": "mesh= and rank=", "sharding": "fields={name: sharding}",
    "shardings": "fields={name: sharding}",
    "columns": "fields=", "keys": "fields=", "pad_to": "buckets=", "length": "buckets=",
    "filter": "sources.of(source).filter(...) as the source",
    "filter_fn": "sources.of(source).filter(...) as the source",
    "ragged": 'sources.of(source, ragged={"ids": 4096}) as the source',
    "dataset": "the source as the first argument",
    "pin_memory": "no such option: batches are aligned to 64 bytes, and swt.Loader's device= moves them",
    "persistent_workers": "no such option: threads stay from epoch to epoch",
    "timeout": "no such option: errors of records come with their batch",
    "in_order": "no such option: batches come in order",
    "multiprocessing_context": "no such option: threads= read ahead in this process",
    "on_error": 'bad_records="fail", "substitute" or "mask"', "resume_from": "load_state_dict(state)",
    "state": "load_state_dict(state)", "mix": "sources.mix(sources, weights) as the source",
    "weights": "sources.mix(sources, weights) as the source"}

#: Methods of other loaders and data sets.
OTHER_METHODS = {"peek": "next(loader), or sources.of(source)[0] for a record",
                 "map": "transform=, or sources.of(source).map(function) as the source",
                 "filter": "sources.of(source).filter(...) as the source", "shuffle": 'order="shuffled"',
                 "batch": "batch_size=", "prefetch": "prefetch=", "repeat": "epochs=",
                 "take": "sources.of(source).take(begin, end), or itertools.islice(loader, n)",
                 "skip": "load_state_dict(state)", "seek": "load_state_dict(state)",
                 "restore": "load_state_dict(state)", "save": "state_dict()",
                 "reset": "another loop, which goes on with another epoch",
                 "set_epoch": "nothing: each loop is another epoch",
                 "dataset": "source", "num_workers": "threads=", "sampler": "order=", "next": "next(loader)",
                 "shard": "mesh= and rank=", "as_numpy_iterator": "the loader itself: batches are numpy's",
                 "pack": "sources.of(source).pack(field, window) as the source",
                 "element_spec": "source.fields", "get_batch": "next(loader)", "get_next": "next(loader)",
                 "shutdown": "close()"}

#: Methods and attributes of other data sets.
OTHER_STAGES = {"resize": 'sources.images(folder, height, width, resize="stretch" or "crop"), '
                          'or map(function)', "select": "take(begin, end), or filter(...)",
                "skip": "take(begin, end)", "head": "take(0, n)", "limit": "take(0, n)",
                "batch": "Loader(source, batch_size=n)", "prefetch": "Loader(source, prefetch=n)",
                "peek": "source[0]", "first": "source[0]", "astype": "cast(field, dtype)",
                "apply": "map(function)", "transform": "map(function)", "with_transform": "map(function)",
                "set_transform": "map(function)",
                "flat_map": "pack(field, window) for documents, or map(function)",
                "interleave": "sources.mix([..], weights)", "mix": "sources.mix([..], weights)",
                "concat": "sources.concat(..)", "concatenate": "sources.concat(..)", "zip": "sources.zip(..)",
                "enumerate": "sources.zip(source, {\"number\": np.arange(len(source))})",
                "shard": "Loader(source, mesh=.., rank=..)", "split": "take(begin, end)",
                "random_split": "shuffle() and take(begin, end)", "train_test_split": "take(begin, end)",
                "random_flip": "flip(field, dim)", "random_crop": 'crop(field, shape, "random")',
                "center_crop": "crop(field, shape)", "columns": "fields", "column_names": "fields",
                "features": "fields", "keys": "fields", "num_rows": "len(source)", "size": "len(source)",
                "sort": "an order of the records before they are a source", "cache": "filter(.., cache=file)",
                "rename": "map(function)", "rename_column": "map(function)",
                "batched": "Loader(source, batch_size=n)", "seed": "Loader(source, seed=n)"}

#: Arguments of functions of other data sets.
OTHER_ARGUMENTS = {
    **dict.fromkeys(("length", "seq_len", "seq_length", "sequence_length", "block_size", "context_length",
                     "max_length"), "window="), **dict.fromkeys(("p", "prob"), "probability="),
    **dict.fromkeys(("std", "scale"), "stddev="), "size": "shape, as (24, 24)",
    **dict.fromkeys(("fn", "func", "map_fn"), "function"),
    **dict.fromkeys(("predicate", "condition"), "keep"),
    **dict.fromkeys(("num_proc", "num_workers", "num_parallel_calls", "threads"),
                    "Loader(source, threads=n)"),
    "batched": "a function of one record", "remove_columns": "a function that gives the fields that stay",
    "seed": "Loader(source, seed=n), or salt=", "generator": "Loader(source, seed=n)",
    "buffer_size": "no buffer: all records are shuffled",
    "reshuffle_each_iteration": "nothing: each epoch has another order", "fill": "value=",
    "fill_value": "value=", "probabilities": "weights", "probs": "weights", "num": "take(begin, end)",
    "n": "take(begin, end)", "count": "a number: take(begin, end) or repeat(times)", "type": "dtype",
    "axis": "dim", "dims": "dim", "column": "field", "key": "field", "name": "field"}
