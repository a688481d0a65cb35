"""Reading events: from records of any format to columns of codes, or to reasons why not."""
