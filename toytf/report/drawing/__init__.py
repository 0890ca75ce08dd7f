"""Parts of a still picture in SVG: texts, axes, and what is drawn between them."""
