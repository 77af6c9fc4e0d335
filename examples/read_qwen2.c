/* Reads what `convert --map qwen2` writes, with nothing but the C library and mmap.
 *
 *     cc -std=c99 -O2 -o read_qwen2 read_qwen2.c
 *     convert --map qwen2 Qwen2.5-0.5B/ qwen.safetensors
 *     ./read_qwen2 qwen.safetensors                       # list the arrays
 *     ./read_qwen2 qwen.safetensors wq 3 0 7  bq 3 0      # wq of layer 3, row 0, column 7; then bq of layer 3, row 0
 *
 * A query is a name and one index for each axis of that array; a line with the value comes back. A safetensors file is
 *
 *     8 bytes   length n of the header, little-endian
 *     n bytes   the header, JSON: {"wq": {"dtype": "F32", "shape": [24, 896, 896], "data_offsets": [begin, end]}, ...}
 *     the rest  the arrays, row-major and little-endian; offsets count from the first byte after the header
 *
 * The qwen2 map stacks each weight over the layers, so the matrix of a layer begins at `layer * stride` floats, where
 * stride is the product of the other axes. That is all the index arithmetic that an engine needs, and because the file
 * is mapped and not read, only the pages that are touched take memory.
 *
 * The machine must be little-endian with IEEE floats, as nearly all are.
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_AXES = 8, MAX_DEPTH = 16 };

struct array {
    char *name, *dtype;
    int axes;
    uint64_t shape[MAX_AXES];
    uint64_t begin, end; /* bytes, from the first byte after the header */
};

struct alias { /* an entry of __metadata__; for a tied array: its name, and the name that is stored */
    char *key, *value;
};

struct checkpoint {
    const char *path;
    const unsigned char *data; /* the first byte after the header */
    uint64_t data_size;
    struct array *arrays;
    size_t n_arrays;
    struct alias *aliases;
    size_t n_aliases;
};

static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("read_qwen2: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void *grow(void *old, size_t count, size_t size) {
    void *p = realloc(old, count * size);
    if (p == NULL) die("out of memory");
    return p;
}

/* ---- just enough JSON: a cursor into the header that knows strings, numbers, and how to skip anything else ---- */

struct cursor {
    const char *path, *start, *at, *end;
};

static void bad(const struct cursor *c, const char *wanted) {
    die("%s: malformed header: expected %s at byte %zu of it", c->path, wanted, (size_t)(c->at - c->start));
}

static char peek(struct cursor *c) { /* the next character that is not space, 0 at the end */
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r')) c->at++;
    return c->at < c->end ? *c->at : '\0';
}

static int accept(struct cursor *c, char ch) {
    if (peek(c) != ch || c->at == c->end) return 0;
    c->at++;
    return 1;
}

static void expect(struct cursor *c, char ch) {
    char wanted[] = {'\'', ch, '\'', '\0'};
    if (!accept(c, ch)) bad(c, wanted);
}

static uint32_t hex4(struct cursor *c) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++, c->at++) {
        char ch = c->at < c->end ? *c->at : '\0';
        if (ch >= '0' && ch <= '9') value = value * 16 + (uint32_t)(ch - '0');
        else if (ch >= 'a' && ch <= 'f') value = value * 16 + (uint32_t)(ch - 'a' + 10);
        else if (ch >= 'A' && ch <= 'F') value = value * 16 + (uint32_t)(ch - 'A' + 10);
        else bad(c, "four hexadecimal digits");
    }
    return value;
}

static char *put_utf8(char *out, uint32_t code) { /* no escape is shorter than the UTF-8 that it becomes */
    if (code < 0x80) {
        *out++ = (char)code;
        return out;
    }
    if (code < 0x800) {
        *out++ = (char)(0xC0 | code >> 6);
    } else {
        if (code < 0x10000) {
            *out++ = (char)(0xE0 | code >> 12);
        } else {
            *out++ = (char)(0xF0 | code >> 18);
            *out++ = (char)(0x80 | (code >> 12 & 0x3F));
        }
        *out++ = (char)(0x80 | (code >> 6 & 0x3F));
    }
    *out++ = (char)(0x80 | (code & 0x3F));
    return out;
}

static uint32_t escape(struct cursor *c) { /* what stands after a backslash */
    char ch = c->at < c->end ? *c->at++ : '\0';
    uint32_t code;
    switch (ch) {
    case '"': case '\\': case '/': return (uint32_t)ch;
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'u': break;
    default: bad(c, "an escape");
    }
    code = hex4(c);
    if (code >= 0xD800 && code < 0xDC00 && c->end - c->at > 2 && c->at[0] == '\\' && c->at[1] == 'u') {
        c->at += 2; /* the other half of a pair */
        code = 0x10000 + ((code - 0xD800) << 10) + ((hex4(c) - 0xDC00) & 0x3FF);
    }
    return code;
}

static char *string(struct cursor *c) { /* freed by nobody: the program is short-lived and the header small */
    char *text, *out;
    const char *close;
    expect(c, '"');
    for (close = c->at; close < c->end && *close != '"'; close++)
        if (*close == '\\') close++;
    text = out = grow(NULL, (size_t)(close - c->at) + 1, 1);
    while (c->at < c->end && *c->at != '"') {
        if (*c->at == '\\') {
            c->at++;
            out = put_utf8(out, escape(c));
        } else {
            *out++ = *c->at++;
        }
    }
    expect(c, '"');
    *out = '\0';
    return text;
}

static uint64_t number(struct cursor *c) { /* the header has no other kind */
    uint64_t value = 0;
    char ch = peek(c);
    if (ch < '0' || ch > '9') bad(c, "a whole number");
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
        if (value > (UINT64_MAX - 9) / 10) bad(c, "a number of 64 bits");
        value = value * 10 + (uint64_t)(*c->at - '0');
    }
    return value;
}

static int numbers(struct cursor *c, uint64_t *into, int room) {
    int n = 0;
    expect(c, '[');
    if (accept(c, ']')) return 0;
    do {
        if (n == room) bad(c, "fewer numbers in a list");
        into[n++] = number(c);
    } while (accept(c, ','));
    expect(c, ']');
    return n;
}

static void skip(struct cursor *c, int depth) { /* any value */
    char ch = peek(c);
    if (depth > MAX_DEPTH) bad(c, "less nesting");
    if (ch == '"') {
        string(c);
    } else if (ch == '{' || ch == '[') {
        char close = ch == '{' ? '}' : ']';
        c->at++;
        if (accept(c, close)) return;
        do {
            if (ch == '{') {
                string(c);
                expect(c, ':');
            }
            skip(c, depth + 1);
        } while (accept(c, ','));
        expect(c, close);
    } else {
        const char *start = c->at;
        while (c->at < c->end && strchr(",]} \t\r\n", *c->at) == NULL) c->at++;
        if (c->at == start) bad(c, "a value");
    }
}

/* ---- the header ---- */

static void read_aliases(struct cursor *c, struct checkpoint *k) {
    expect(c, '{');
    if (accept(c, '}')) return;
    do {
        k->aliases = grow(k->aliases, k->n_aliases + 1, sizeof *k->aliases);
        k->aliases[k->n_aliases].key = string(c);
        expect(c, ':');
        k->aliases[k->n_aliases++].value = string(c);
    } while (accept(c, ','));
    expect(c, '}');
}

static struct array read_array(struct cursor *c, char *name) {
    struct array a = {.name = name, .axes = -1};
    uint64_t offsets[2];
    int n_offsets = 0;
    expect(c, '{');
    do {
        char *key = string(c);
        expect(c, ':');
        if (strcmp(key, "dtype") == 0) a.dtype = string(c);
        else if (strcmp(key, "shape") == 0) a.axes = numbers(c, a.shape, MAX_AXES);
        else if (strcmp(key, "data_offsets") == 0) n_offsets = numbers(c, offsets, 2);
        else skip(c, 0);
        free(key);
    } while (accept(c, ','));
    expect(c, '}');
    if (a.dtype == NULL || a.axes < 0 || n_offsets != 2)
        die("%s: %s: dtype, shape or data_offsets is missing", c->path, name);
    a.begin = offsets[0];
    a.end = offsets[1];
    return a;
}

static void check_array(const struct checkpoint *k, const struct array *a) {
    uint64_t bytes = sizeof(float);
    if (a->begin > a->end || a->end > k->data_size)
        die("%s: %s: bytes %" PRIu64 " to %" PRIu64 " are not inside the file", k->path, a->name, a->begin, a->end);
    if (strcmp(a->dtype, "F32") != 0) return; /* listed, but no query can read it */
    for (int i = 0; i < a->axes; i++) {
        if (a->shape[i] != 0 && bytes > UINT64_MAX / a->shape[i]) die("%s: %s: shape is too large", k->path, a->name);
        bytes *= a->shape[i];
    }
    if (bytes != a->end - a->begin)
        die("%s: %s: its shape takes %" PRIu64 " bytes, the file gives it %" PRIu64, k->path, a->name, bytes,
            a->end - a->begin);
}

static struct checkpoint open_checkpoint(const char *path) {
    struct checkpoint k = {.path = path};
    struct cursor c = {.path = path};
    struct stat info;
    const unsigned char *file;
    uint64_t length = 0;
    int fd = open(path, O_RDONLY);

    if (fd < 0 || fstat(fd, &info) != 0) die("%s: cannot be opened", path);
    if (info.st_size < 8) die("%s: too short for a safetensors file: %lld bytes", path, (long long)info.st_size);
    file = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file == MAP_FAILED) die("%s: cannot be mapped into memory", path);
    close(fd); /* the mapping stays */

    for (int i = 7; i >= 0; i--) length = length << 8 | file[i];
    if (length > (uint64_t)info.st_size - 8)
        die("%s: not a safetensors file: the header would have %" PRIu64 " bytes, the file has %lld", path, length,
            (long long)info.st_size);
    k.data = file + 8 + length;
    k.data_size = (uint64_t)info.st_size - 8 - length;

    c.start = c.at = (const char *)file + 8;
    c.end = c.at + length;
    expect(&c, '{');
    if (accept(&c, '}')) return k;
    do {
        char *name = string(&c);
        expect(&c, ':');
        if (strcmp(name, "__metadata__") == 0) {
            read_aliases(&c, &k);
            continue;
        }
        k.arrays = grow(k.arrays, k.n_arrays + 1, sizeof *k.arrays);
        k.arrays[k.n_arrays] = read_array(&c, name);
        check_array(&k, &k.arrays[k.n_arrays++]);
    } while (accept(&c, ','));
    expect(&c, '}');
    return k;
}

static const struct array *find(const struct checkpoint *k, const char *name) {
    for (size_t i = 0; i < k->n_arrays; i++)
        if (strcmp(k->arrays[i].name, name) == 0) return &k->arrays[i];
    /* A small Qwen has no head of its own: wcls is not stored, and metadata says "wcls": "token_embedding_table". */
    for (size_t i = 0; i < k->n_aliases; i++)
        if (strcmp(k->aliases[i].key, name) == 0)
            for (size_t j = 0; j < k->n_arrays; j++)
                if (strcmp(k->arrays[j].name, k->aliases[i].value) == 0) return &k->arrays[j];
    die("%s: no array is called %s", k->path, name);
    return NULL;
}

/* ---- what an engine does: layer * stride + offset ---- */

static float value_at(const struct checkpoint *k, const struct array *a, const uint64_t *index) {
    uint64_t stride = 1, offset = 0, layer = a->axes > 0 ? index[0] : 0;
    float value;
    for (int i = 1; i < a->axes; i++) {
        stride *= a->shape[i];                     /* floats from one layer to the next */
        offset = offset * a->shape[i] + index[i];  /* row * columns + column, within the layer */
    }
    /* An engine would keep `const float *wq = (const float *)(k->data + a->begin)` and index it: the converter aligns
     * what it writes. memcpy is right for any file. */
    memcpy(&value, k->data + a->begin + (layer * stride + offset) * sizeof value, sizeof value);
    return value;
}

static void list(const struct checkpoint *k) {
    for (size_t i = 0; i < k->n_arrays; i++) {
        const struct array *a = &k->arrays[i];
        printf("%s %s [", a->name, a->dtype);
        for (int j = 0; j < a->axes; j++) printf(j ? ", %" PRIu64 : "%" PRIu64, a->shape[j]);
        printf("]\n");
    }
}

int main(int argc, char **argv) {
    struct checkpoint k;
    int arg = 2;
    if (argc < 2) die("usage: read_qwen2 FILE [NAME INDEX...]...");
    k = open_checkpoint(argv[1]);
    if (argc == 2) list(&k);
    while (arg < argc) {
        const char *name = argv[arg++];
        const struct array *a = find(&k, name);
        uint64_t index[MAX_AXES];
        if (strcmp(a->dtype, "F32") != 0) die("%s: %s is %s, and this program reads F32 only", k.path, name, a->dtype);
        for (int i = 0; i < a->axes; i++, arg++) {
            char *rest;
            if (arg == argc) die("%s has %d axes: an index is missing", name, a->axes);
            index[i] = strtoull(argv[arg], &rest, 10);
            if (argv[arg][0] < '0' || argv[arg][0] > '9' || *rest != '\0')
                die("%s has %d axes, and %s is no index", name, a->axes, argv[arg]);
            if (index[i] >= a->shape[i])
                die("%s: index %s of axis %d is not below %" PRIu64, name, argv[arg], i, a->shape[i]);
        }
        printf("%s", name);
        for (int i = 0; i < a->axes; i++) printf(" %" PRIu64, index[i]);
        printf(" %.9g\n", value_at(&k, a, index)); /* nine digits give a float back exactly */
    }
    return 0;
}
