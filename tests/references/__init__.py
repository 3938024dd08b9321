"""Slow, literal transcriptions of the paper's equations, used to test the fast library.

Everything here is float64 numpy, written for reading rather than for speed, and imports nothing
from the package it is used to check.

    kernels     kernel values and the metric d_k
    posterior   mean, standard deviation, norm of the mean, log determinant
    bounds      beta of the printed and the Abbasi-Yadkori bound, mixture interval, falsification
    scenario    random norms, discards, Algorithm 3, the Hoeffding norm of 2024
    sets        safe set, maximisers, expanders: all pairs
    algorithm   Algorithms 1, 2 and 4, several outputs
"""
