"""Floor 3: what a daemon shows over HTTP, if it is told to: the web view and Prometheus. Read-only.

    access     who may look: loopback, or a token; never another origin
    history    losses and rates of the past, in bounded memory
    app        the pages, as an ASGI application (starlette)
    serve      the application on an address, in the daemon's own loop (hypercorn runs on trio)
    page/      the one page: plain HTML, CSS and JavaScript, nothing from elsewhere

hypercorn is the ASGI server that runs on trio, and starlette the smallest kept framework that does
not care which loop it runs on; both are loaded only where --web or --metrics is given.
"""
