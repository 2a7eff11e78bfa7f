"""A registry of images that stands in for docker.io: the real protocol, over TLS, read only.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md (Pull), image-spec v1.1.0.
"""

import gzip
import hashlib
import io
import json
import ssl
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What a registry keeps of one image: its manifest, and by digest what that names."""

    manifest: bytes
    blobs: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """Of the manifest: what an image is pinned by."""
        return _digest(self.manifest)


def image_of(root: Path, labels: Mapping[str, str]) -> Image:
    """An image of one layer, the content of a folder."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as files:
        files.add(root, arcname=".")
    layer = gzip.compress(tar.getvalue(), compresslevel=1, mtime=0)
    config = _json(
        architecture="amd64",
        os="linux",
        config={"Labels": dict(labels)},
        rootfs={"type": "layers", "diff_ids": [_digest(tar.getvalue())]},
    )
    manifest = _json(
        schemaVersion=2,
        mediaType=_MANIFEST,
        config=_named(_CONFIG, config),
        layers=[_named(_LAYER, layer)],
    )
    return Image(manifest=manifest, blobs={_digest(b): b for b in (config, layer)})


def _json(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _named(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}


@dataclass(slots=True)
class Registry:
    """Gives one image whatever tag or digest is asked for; an engine is to notice the latter."""

    image: Image
    environ: Mapping[str, str]
    """With which a program takes it for each of HOSTS."""
    asked: list[str] = field(default_factory=list)
    """Names and tags, or digests, of the manifests that were asked for."""

    def answer(self, path: str) -> tuple[str, str, bytes] | None:
        """Media type, digest and content; None where there is no such thing."""
        if path == "/v2/":
            return "application/json", "", b"{}"
        name, _, reference = path.removeprefix("/v2/").rpartition("/")
        if name.endswith("/manifests"):
            self.asked.append(f"{name.removesuffix('/manifests')} {reference}")
            return _MANIFEST, self.image.digest, self.image.manifest
        blob = self.image.blobs.get(reference)
        return None if blob is None else ("application/octet-stream", reference, blob)


HOSTS = ("index.docker.io", "registry-1.docker.io")
"""Where apptainer and podman look for images of docker.io."""


@contextmanager
def registry(image: Image, folder: Path) -> Iterator[Registry]:
    """One that answers for docker.io, behind a proxy on a free port of loopback.

    Args:
        image: what it has.
        folder: its certificate is put there, for those who may read it.
    """
    certificate, key = folder / "registry.pem", folder / "registry.key"
    names = ",".join(f"DNS:{host}" for host in HOSTS)
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-noenc", "-days", "1"),
            *("-subj", "/CN=registry", "-addext", f"subjectAltName={names}"),
            *("-out", certificate, "-keyout", key),
        ],
        check=True,
        capture_output=True,
    )
    certificate.chmod(0o644)
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(certificate, key)
    environ = {"SSL_CERT_FILE": str(certificate)}
    kept = Registry(image, environ)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_CONNECT(self) -> None:
            """As the proxy: go on as the registry itself, over TLS."""
            self.send_response(200)
            self.end_headers()
            self.rfile.close()
            self.connection = secured.wrap_socket(self.connection, server_side=True)
            self.rfile = self.connection.makefile("rb")
            self.wfile = self.connection.makefile("wb", buffering=0)
            self.close_connection = False

        def finish(self) -> None:
            super().finish()
            self.connection.close()  # the server knows of the one without TLS alone

        def do_GET(self) -> None:
            found = kept.answer(self.path)
            kind, digest, content = found or ("text/plain", "", b"")
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            if digest:
                self.send_header("Docker-Content-Digest", digest)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Say nothing: tests have their own words."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        environ["HTTPS_PROXY"] = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield kept
        finally:
            server.shutdown()
            thread.join()
