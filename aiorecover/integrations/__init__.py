"""What a service takes from the shelf: each module needs the extra of its own name, and public names of the package.

=================  =====================================================================================
`fastapi`          `lifespan`, `ProducerDep`, `exception_handlers`, `probes`, a router for dead letters
`starlette`        the same without dependencies, for a plain Starlette
`litestar`         the same for Litestar
=================  =====================================================================================

docs/services.md shows each at work.
"""
