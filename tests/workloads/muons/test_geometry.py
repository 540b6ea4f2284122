import numpy as np

from workloads.muons.columns import EARTH_RADIUS_M, slant_depth_m, vertical_depth_m


def test_slant_depth_follows_the_published_formula():
    cos_zenith, depth_m, radius_m = np.array([1.0, 0.8, 0.5, 0.174]), 2000.0, EARTH_RADIUS_M
    root = np.sqrt(2 * radius_m * depth_m + (cos_zenith * (radius_m - depth_m)) ** 2 - depth_m**2)
    expected_m = root - (radius_m - depth_m) * cos_zenith

    np.testing.assert_allclose(slant_depth_m(cos_zenith, np.full(4, depth_m)), expected_m, rtol=1e-7)


def test_vertical_depth_undoes_slant_depth():
    cos_zenith = np.linspace(0.17, 1.0, 50)
    depth_m = np.linspace(1000.0, 2800.0, 50)

    back_m = vertical_depth_m(cos_zenith, slant_depth_m(cos_zenith, depth_m))

    np.testing.assert_allclose(back_m, depth_m, rtol=1e-12)
