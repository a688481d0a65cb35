"""From records of any format to columns of codes, or to reject reasons.

Start with `source_reader`, which serves one source partition. Every format (`json`, and `formats`
for Avro and Protobuf with a Schema Registry) has a compiled scanner that writes event logs (`log`),
and a general reader that decides about records that the scanner declines. `reader` and
`view_kernels` turn logs into events, `vocabulary` labels into codes. Imports `kafka.records`,
`settings`, `mechanisms`, `arrays` and `runtime`.
"""
