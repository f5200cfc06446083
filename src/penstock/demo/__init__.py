"""What ``penstock demo`` shows: pictures of shapes with captions, a tiny model that learns them, and a run that dies."""
