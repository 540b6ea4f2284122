"""Emulation of the Pelican director's redirect answers (director/director.go, server_structs/director.go)."""
import json
import posixpath
import time
import uuid
from urllib.parse import quote, unquote, urlencode

import jwt
from aiohttp import web

LIMIT = 6  # serverResLimit


class Director:
    def __init__(self, fed):
        self.fed = fed
        self.faults = []          # callables(req, path) -> Response | None, or dataserver.Fault via .fault()
        self.stat_origins = False  # CheckOriginPresence applies only with >1 origin (AssumePresenceAtSingleOrigin defaults to true)
        self.app = web.Application()
        r = self.app.router
        r.add_get("/.well-known/pelican-configuration", self.discovery)
        r.add_get("/issuer/.well-known/openid-configuration", self.openid)
        r.add_get("/issuer/.well-known/issuer.jwks", self.jwks)
        r.add_get("/.well-known/issuer.jwks", self.jwks)
        r.add_route("*", "/{path:.*}", self.redirect)

    def fault(self, kind, value=0, match="", methods=("GET", "HEAD", "PROPFIND", "PUT"), times=None):
        from tests.federation.dataserver import Fault
        f = Fault(kind, value, match, tuple(methods), times)
        self.faults.append(f)
        return f

    def heal(self):
        self.faults.clear()

    async def _faulted(self, req, path):
        import asyncio
        f = next((f for f in self.faults if f.applies(req.method, path)), None)
        if not f:
            return None
        if f.kind == "status":
            return web.json_response({"status": "error", "msg": f"injected {int(f.value)}"}, status=int(f.value))
        if f.kind == "hang":
            await asyncio.sleep(f.value or 3600)
        if f.kind == "disconnect":
            req.transport.close()
        return web.Response(status=502)

    async def discovery(self, req):
        e = self.fed.log_request("discovery", req, req.path)
        bad = await self._faulted(req, req.path)
        if bad is not None:
            e["status"] = bad.status
            return bad
        e["status"] = 200
        u = self.fed.director_url
        body = {"discovery_endpoint": u, "director_endpoint": u, "namespace_registration_endpoint": u,
                "jwks_uri": u + "/.well-known/issuer.jwks", "broker_endpoint": u}
        return web.Response(body=json.dumps(body, indent=2).encode() + b"\n", content_type="application/json",
                            headers={"Content-Disposition": "attachment; filename=pelican-configuration.json"})

    async def openid(self, req):
        self.fed.log_request("issuer", req, req.path)["status"] = 200
        return web.json_response(self.fed.issuer.openid_configuration())

    async def jwks(self, req):
        self.fed.log_request("issuer", req, req.path)["status"] = 200
        return web.json_response(self.fed.issuer.jwks())

    async def redirect(self, req):
        raw = posixpath.normpath("/" + unquote(req.raw_path.split("?", 1)[0]).lstrip("/"))
        entry = self.fed.log_request("director", req, raw)
        resp = await self._faulted(req, raw) or self._answer(req, raw)
        entry["status"] = resp.status
        return resp

    def _error(self, status, msg):
        return web.json_response({"status": "error", "msg": f"{msg}: Request ID: {uuid.uuid4()}"}, status=status)

    def _answer(self, req, raw):
        origin, path = False, raw
        for pre, o in (("/api/v1.0/director/object", False), ("/api/v1.0/director/origin", True)):
            if raw == pre or raw.startswith(pre + "/"):
                path, origin = raw[len(pre):] or "/", o
        method = req.method
        if method == "OPTIONS":
            return web.Response(headers={"Allow": "HEAD,GET,PUT,PROPFIND,COPY,OPTIONS,POST"})
        if method in ("PUT", "DELETE", "PROPFIND") or "directread" in req.query:
            origin = True
        if "directread" in req.query and "prefercached" in req.query:
            return self._error(400, "directread and prefercached exclude each other")
        ns = self.fed.namespace_for(path)
        if ns is None:
            return self._error(404, f"no origin serves {path}")
        ok = {"GET": True, "HEAD": True, "PUT": ns.writes, "DELETE": ns.writes,
              "PROPFIND": ns.listings or req.headers.get("Depth", "0") == "0"}.get(method, False)
        if not ok or ("directread" in req.query and not ns.direct_reads):
            return self._error(405, "no source of this namespace allows the request")
        authz = (req.query.get("authz") or req.headers.get("Authorization", "")).removeprefix("Bearer ")
        if self.stat_origins and method in ("GET", "HEAD") and (ns.public or authz) and "skipstat" not in req.query:
            if not (self.fed.root / path.lstrip("/")).exists():
                return self._error(404, f"object {path} is at no origin")
        expired = self._expired(authz)
        if expired:
            r = self._error(401, "bearer token has expired")
            r.headers["WWW-Authenticate"] = 'Bearer error="invalid_token", error_description="token has expired"'
            return r
        servers = self.fed.origin_urls(ns) if origin else self.fed.cache_urls(ns)
        if not servers:
            servers = self.fed.origin_urls(ns) if ns.direct_reads else []
        if not servers:
            return self._error(404, "no cache, and no origin with direct reads")

        rest = path[len(ns.prefix):].strip("/")
        depth = len(rest.split("/")) if rest else 0
        urls = [s.rstrip("/") + quote(path, safe="/$&+,:;=@~") for s in servers]   # as Go's url.URL.String()
        h = []
        h.append(("Link", ", ".join(f'<{u}>; rel="duplicate"; pri={i + 1}; depth={depth}' for i, u in enumerate(urls[:LIMIT]))))
        if not ns.public or ns.writes:
            h.append(("X-Pelican-Authorization", f"issuer={self.fed.issuer.url}"))
            h.append(("X-Pelican-Token-Generation", f"issuer={self.fed.issuer.url}, max-scope-depth=3, strategy=OAuth2, base-path={ns.prefix}"))
        nsh = f"namespace={ns.prefix}, require-token={'false' if ns.public else 'true'}"
        if ns.listings:
            nsh += f", collections-url={self.fed.origin_urls(ns)[0]}"
        h.append(("X-Pelican-Namespace", nsh))
        h.append(("X-Pelican-JobId", str(uuid.uuid4())))
        h += [("Access-Control-Allow-Origin", "*"), ("Server", "pelican/7.20.0")]
        if req.query.get("redirect") == "false":
            return web.Response(status=200, headers=h)
        q = {k: v for k, v in req.query.items()}
        if authz:
            q["authz"] = authz
        loc = urls[0] + ("?" + urlencode(sorted(q.items())) if q else "")
        h.append(("Location", loc))
        return web.Response(status=307, headers=h, text=f'<a href="{loc}">Temporary Redirect</a>.\n\n' if method == "GET" else "", content_type="text/html")

    @staticmethod
    def _expired(token):
        """validateClientToken: unverified exp with min(10 s, lifetime/2) grace."""
        if not token:
            return False
        try:
            c = jwt.decode(token, options={"verify_signature": False, "verify_exp": False, "verify_aud": False})
        except jwt.PyJWTError:
            return False
        if "exp" not in c:
            return False
        grace = 10.0
        if "iat" in c:
            grace = min(grace, (c["exp"] - c["iat"]) / 2)
            if c["exp"] <= c["iat"]:
                return True
        return time.time() + grace > c["exp"]
