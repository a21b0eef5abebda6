"""Runs on a Ray cluster that others brought up (Vertex AI, KubeRay, any address), through Ray's own job API."""
