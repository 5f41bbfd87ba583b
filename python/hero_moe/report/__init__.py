"""`hero report RUN... --out FILE`: compares training runs on one page. Other pages share its figures."""
