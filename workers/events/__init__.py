"""From records of any format to columns of codes, or to reject reasons.

Start with `reading`, which has the way of a batch. Every format (`json`, and `formats` for Avro and
Protobuf with a Schema Registry) has a compiled scanner that writes event logs (`log`), and a
general reader that decides about records that the scanner declines. `views` turns logs into the
keys and labels of each view (the fields that a histogram reads), `vocabulary` and `columns` turn
these into codes (numbers of texts). Imports `kafka.records`, `settings`, `mechanisms`, `arrays` and
`runtime`.
"""
