"""How much memory and time content may take: shapes that cost most, and a search for worse ones."""
