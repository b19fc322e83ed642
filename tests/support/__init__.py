"""What several tests share: models, texts, caches and checks. Nothing here is a test."""
