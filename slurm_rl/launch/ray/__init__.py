"""Runs on an existing Ray cluster (Vertex AI, KubeRay, any address), through Ray's job API."""
