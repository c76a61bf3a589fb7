-- The tables of a history; what an older one lacks is added when it is opened.
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY,
    report TEXT NOT NULL,
    made_at TEXT NOT NULL,
    name TEXT NOT NULL,
    verdict TEXT NOT NULL,
    variant TEXT,
    sentence TEXT NOT NULL,
    command TEXT,
    folder TEXT,
    digests TEXT NOT NULL,
    UNIQUE (report, made_at)
);
CREATE TABLE IF NOT EXISTS figures (
    run INTEGER NOT NULL REFERENCES runs (id),
    variant TEXT NOT NULL,
    figure TEXT NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (run, variant, figure)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS runs_by_name ON runs (name, id);
CREATE TABLE IF NOT EXISTS tags (
    run INTEGER NOT NULL REFERENCES runs (id),
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS meters (
    run INTEGER PRIMARY KEY REFERENCES runs (id),
    meter TEXT NOT NULL
);
