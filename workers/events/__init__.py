"""From records of any format to columns of codes, or to reasons why not.

Imports `kafka.records`, `settings`, `mechanisms`, `arrays` and `runtime`. Start with
`source_reader`, which serves one source partition. Every format is a compiled scanner that writes
spans of fields (`logs`), and a general reader that decides about records the scanner declines:
`json` and `json_scanner`, `formats` for Avro and Protobuf behind a Schema Registry (`schemas`).
`reader` and `view_kernels` turn spans into events, `vocabulary` labels into codes.
"""
