"""From records of any format to columns of codes, or to reject reasons.

Imports `kafka.records`, `settings`, `mechanisms`, `arrays` and `runtime`. Start with
`source_reader`, which serves one source partition. Every format has a compiled scanner that writes
spans of fields (`logs`), and a general reader that decides about records that the scanner declines:
`json` and `json_scanner`, `formats` for Avro and Protobuf with a Schema Registry (`schemas`).
`reader` and `view_kernels` turn spans into events, `vocabulary` labels into codes.
"""
