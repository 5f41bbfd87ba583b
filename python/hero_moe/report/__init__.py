"""`hero report RUN... --out FILE`: training runs compared on one page. Figures and numbers that other pages share."""
