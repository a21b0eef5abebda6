"""Ray's job API over HTTP to the dashboard. Standard library only, so a login node needs no Ray. Every call has a
deadline.

    dashboard = Dashboard("http://head:8265", token)       token: RAY_AUTH_TOKEN, sent only in a header

https://docs.ray.io/en/latest/cluster/running-applications/job-submission/api.html
"""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from slurm_rl.errors import ConfigError, SlurmRLError, SubmitError

TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
_ANSWER_S = 20.0
_UPLOAD_S = 120.0
_ALIVE = ("PENDING", "RUNNING")


class RayUnavailableError(SlurmRLError):
    """The cluster does not answer now; a retry may succeed."""


@dataclass(frozen=True)
class RayJob:
    """State of a job, as Ray reports it."""

    status: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    message: str
    exit_code: int | None

    @property
    def is_alive(self) -> bool:
        return self.status in _ALIVE


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: the token is only for the address that the user named."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class Dashboard:
    """One Ray cluster."""

    def __init__(self, address: str, token: str | None) -> None:
        self.address, self._token = address.rstrip("/"), token or None
        if self._token is not None and not (self._token.isascii() and self._token.isprintable()):
            raise ConfigError(
                f"{TOKEN_VARIABLE} must be ASCII without spaces",
                seen=f"{len(self._token)} characters, some of them not printable",
                action=f"export {TOKEN_VARIABLE} again, without a line break at its end",
            )
        self._opener = urllib.request.build_opener(_NoRedirect)

    def ray_version(self) -> str:
        """Return the version of Ray on the cluster; call it first, since it checks address and token."""
        found = self._json("/api/version")
        if found is None or "ray_version" not in found:
            raise self._is_no_dashboard(f"an answer without ray_version: {str(found)[:100]}")
        return str(found["ray_version"])

    def has_package(self, name: str) -> bool:
        """Return True if a working directory of that name was uploaded before."""
        try:
            self._request("GET", f"/api/packages/gcs/{quote(name)}")
        except _NotFound:
            return False
        return True

    def upload_package(self, name: str, content: bytes) -> None:
        """Store a zip as `gcs://<name>`."""
        self._request("PUT", f"/api/packages/gcs/{quote(name)}", content, timeout_s=_UPLOAD_S)

    def submit(self, request: Mapping[str, Any]) -> None:
        """Start a job; `request` is Ray's JobSubmitRequest."""
        body = json.dumps(request).encode()
        self._request("POST", "/api/jobs/", body, kind="application/json")

    def find_job(self, job_id: str) -> RayJob | None:
        """Return the job; None if Ray does not know it."""
        found = self._json(f"/api/jobs/{quote(job_id)}")
        if found is None:
            return None
        return RayJob(str(found["status"]), str(found.get("message") or ""), found.get("driver_exit_code"))

    def read_logs(self, job_id: str) -> str:
        """Return the output of the job so far; "" if Ray does not know it."""
        found = self._json(f"/api/jobs/{quote(job_id)}/logs") or {}
        return str(found.get("logs") or "")

    def stop(self, job_id: str) -> None:
        """Request the job to save and end: Ray sends SIGTERM, and SIGKILL after the job's grace period."""
        self._request("POST", f"/api/jobs/{quote(job_id)}/stop", b"")

    def _json(self, path: str) -> dict[str, Any] | None:
        """Return the parsed JSON object; None for HTTP 404."""
        try:
            found = json.loads(self._request("GET", path))
        except _NotFound:
            return None
        except ValueError:
            raise self._is_no_dashboard("an answer that is not JSON") from None
        if not isinstance(found, dict):
            raise self._is_no_dashboard(f"an answer of {type(found).__name__}")
        return found

    def _request(
        self, method: str, path: str, body: bytes | None = None, *, kind: str = "", timeout_s: float | None = None
    ) -> bytes:
        timeout_s = timeout_s or _ANSWER_S
        request = urllib.request.Request(self.address + path, data=body, method=method)
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        request.add_header("Content-Type", kind or "application/octet-stream")
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                content: bytes = answer.read()
            return content
        except urllib.error.HTTPError as error:
            raise self._refusal(error, path) from None
        except TimeoutError:
            raise self._silence(timeout_s) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._silence(timeout_s) from None
            hint = "; is it https?" if isinstance(error.reason, ssl.SSLError) else ""
            raise self._is_no_dashboard(f"{error.reason}{hint}") from None
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise self._is_no_dashboard(f"{type(error).__name__}: {error}") from None

    def _refusal(self, error: urllib.error.HTTPError, path: str) -> SlurmRLError:
        words = error.read(2000).decode("utf-8", errors="replace").strip()
        if error.code in (401, 403):
            sent = f"it refused the one in {TOKEN_VARIABLE}" if self._token else f"{TOKEN_VARIABLE} is not set"
            return SubmitError(
                f"the Ray cluster at {self.address} wants its token",
                seen=f"{sent} (HTTP {error.code})",
                action=f"export {TOKEN_VARIABLE}=<token of that cluster>; Google's: gcloud auth print-access-token",
            )
        if error.code == 404:
            if path == "/api/version":
                return self._is_no_dashboard("HTTP 404 for /api/version")
            return _NotFound("Ray must know the requested object", seen=path)
        if error.code in range(300, 400):
            return self._is_no_dashboard(f"it redirects to {error.headers.get('Location')}")
        last = words.splitlines()[-1] if words else ""
        if error.code >= 500:
            return RayUnavailableError(f"Ray at {self.address} must answer", seen=f"HTTP {error.code} {last}")
        return SubmitError(f"Ray at {self.address} refused", seen=f"HTTP {error.code} {last}")

    def _is_no_dashboard(self, seen: str) -> SubmitError:
        return SubmitError(
            f"cluster.address must be that of a Ray dashboard; {self.address} is none",
            seen=seen,
            action="name the dashboard's address as it is seen from here, such as http://host:8265 (not the GCS's "
            "port 6379, nor Ray client's 10001); kubectl port-forward or ssh -L make one",
        )

    def _silence(self, timeout_s: float) -> RayUnavailableError:
        return RayUnavailableError(
            f"the Ray dashboard at {self.address} must answer within {timeout_s:g} s",
            seen="no answer",
            action="look whether the address can be reached from here, and try again",
        )


class _NotFound(SubmitError):
    """HTTP 404 of a path that Ray has."""
