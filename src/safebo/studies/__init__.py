"""Long jobs with a record: figures of the paper, calibration, training of the learned norm. Used by the command line."""
