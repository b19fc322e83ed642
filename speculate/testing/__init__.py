"""What proves that a part is exact: shipped fakes, for your tests and ours."""
