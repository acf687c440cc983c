"""Key types that a master can have, each as SQL expressions over a column `id`."""

KEYS: dict[str, list[str]] = {
    "tinyint": ["cast(id % 100 as tinyint)"],
    "smallint": ["cast(id - 200 as smallint)"],
    "int": ["cast(id - 200 as int)"],
    "bigint": ["(id - 200) * 10000000019"],
    "string": ["concat('käy-😀-', repeat('x', cast(id % 40 as int)), id)"],
    "date": ["date_add(date'1969-06-01', cast(id as int))"],
    "timestamp": ["timestamp_micros(id * 86399999999 - 12345678901234)"],
    "timestamp_ntz": ["cast(timestamp_micros(id * 86399999999 - 12345678901234) as timestamp_ntz)"],
    "time": ["make_time(cast(id % 24 as int), cast(id * 7 % 60 as int), id / 1000)"],
    "interval": ["make_dt_interval(id - 200, cast(id % 24 as int), 59, id / 7000000)"],
    "decimal": ["cast((id - 200) / 4 as decimal(12,3))"],
    "long decimal": ["cast((id - 200) as decimal(38,10)) * cast(12345678901234567 as decimal(17,0))"],
    "binary": ["unhex(concat(repeat('00', cast(id % 5 as int)), hex(id)))"],
    "boolean": ["id % 2 = 0"],
    "double": ["case id % 50 when 0 then double('NaN') when 1 then -0.0D when 2 then 0.0D else id / 3 end"],
    "float": ["cast(case id % 50 when 0 then 'NaN' when 1 then '-0.0' when 2 then '0.0' else id / 3 end as float)"],
    "composite": ["cast(id % 17 as int)", "concat('p', id % 29)", "date_add(date'2020-01-01', cast(id % 3 as int))"],
}


def key_columns(kind: str) -> list[str]:
    return [f"k{number}" for number in range(len(KEYS[kind]))]


def with_nulls(kind: str) -> list[str]:
    """Expressions of the key columns, some of which are NULL in every 13th row."""
    parts = []
    for number, (name, expression) in enumerate(zip(key_columns(kind), KEYS[kind], strict=True)):
        parts.append(
            f"case when id % 13 = 5 and id % {len(KEYS[kind])} = {number} then null else {expression} end as {name}"
        )
    return parts
