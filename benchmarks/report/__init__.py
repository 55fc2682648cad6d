"""Result documents as HTML, charts and text; two of them compared."""
