/* The twin of aiorecover/ring/writer.py in C: the same bytes, the same order of stores, the same errors.

   The usual path is all C: a lane that is known, a value of bytes, no headers, no note, room in the batch. What is rare
   is left to the Python code: `find`, `set_time` without a batch, `make_room` and `add_note` of a Cursor,
   `encode_headers`, `id_prefix`, and `moved` for what is damaged. `Acceptor` is the same for `acceptor.Acceptor`.

   `Tail` is what a Cursor derives from: the numbers that each record reads and moves lie side by side there, and Python
   sees them as attributes. The memory of a mapping is asked for with each record and let go after it: closing a mapping needs to know nothing of
   this file, and a mapping that is closed is a ValueError before anything is stored.

   All that can fail comes before the first byte is stored. Only making the receipt comes after it, as in Python. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>

#ifdef Py_GIL_DISABLED
#error "free-threaded builds are not supported: the Python writer runs there"
#endif
#if SIZEOF_SIZE_T < 8
#error "64 bits are needed: the Python writer runs there"
#endif

#define TABLE 16384     /* records a batch at most, as in ring/records.py */
#define VARINT_MOST 10  /* bytes of a number */
#define FIELDS_LEAST 3  /* bytes of a record after its index: key, value and number of headers */
#define THOUSAND 1000   /* sequences that have a prefix of the id in common */
#define FIRST_SEQUENCE 1
#define TIME_MOST (INT64_C(1) << 60)  /* ms: what is beyond it is left to Python, and no difference overflows */
#define NS_PER_MS 1000000
#define PIECES 8        /* that a record is put together from */

/* -- what the Python code has ------------------------------------------------------------------------------------- */

static PyObject *encode_headers, *id_prefix, *moved;
static Py_ssize_t trailer_size;  /* bytes of a note beside its payload */

enum { SET_TIME, MAKE_ROOM, ADD_NOTE, NAMES };
static const char *const name_texts[NAMES] = {"set_time", "make_room", "add_note"};
static PyObject *names[NAMES];

static int check_type(PyObject *object, PyTypeObject *type, const char *what)
{
    if (object != NULL && PyObject_TypeCheck(object, type)) return 0;
    PyErr_Format(PyExc_TypeError, "%s must be %s, not %s", what, type->tp_name,
                 object == NULL ? "missing" : Py_TYPE(object)->tp_name);
    return -1;
}

/* Return what a call has made if that is bytes. */
static PyObject *bytes_only(PyObject *made)
{
    if (made != NULL && check_type(made, &PyBytes_Type, "what was made") < 0) Py_CLEAR(made);
    return made;
}

/* Drop what a call has made: 0, or -1 where it failed. */
static int drop(PyObject *made)
{
    Py_XDECREF(made);
    return made == NULL ? -1 : 0;
}

/* -- the tail of a lane, as in ring/tail.py ------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *words, *batch;              /* the mapping's memory; the open batch */
    Py_ssize_t position, limit, commit, bias, index;
    long long stamp, base, latest;        /* ms: of the record before, the batch's base, the greatest of its records */
    unsigned char prefix[1 + VARINT_MOST];  /* what a record of the time `stamp` begins with */
    unsigned char prefix_size;
    PyObject *data;                       /* the mapping, for Python */
} Tail;

static PyTypeObject tail_type;

static PyObject *tail_get_prefix(Tail *self, void *Py_UNUSED(closure))
{
    return PyBytes_FromStringAndSize((char *)self->prefix, self->prefix_size);
}

static int tail_set_prefix(Tail *self, PyObject *prefix, void *Py_UNUSED(closure))
{
    if (check_type(prefix, &PyBytes_Type, "prefix") < 0) return -1;
    Py_ssize_t size = PyBytes_GET_SIZE(prefix);
    if (size > (Py_ssize_t)sizeof self->prefix) {
        PyErr_Format(PyExc_ValueError, "prefix is too long bytes=%zd", size);
        return -1;
    }
    memcpy(self->prefix, PyBytes_AS_STRING(prefix), (size_t)size);
    self->prefix_size = (unsigned char)size;
    return 0;
}

static int tail_traverse(Tail *self, visitproc visit, void *arg)
{
    Py_VISIT(self->words);
    Py_VISIT(self->batch);
    Py_VISIT(self->data);
    return 0;
}

static int tail_clear(Tail *self)
{
    Py_CLEAR(self->words);
    Py_CLEAR(self->batch);
    Py_CLEAR(self->data);
    return 0;
}

static void tail_dealloc(Tail *self)
{
    PyObject_GC_UnTrack(self);
    tail_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef tail_members[] = {
    {"words", T_OBJECT_EX, offsetof(Tail, words), 0, NULL},
    {"batch", T_OBJECT_EX, offsetof(Tail, batch), 0, NULL},
    {"data", T_OBJECT_EX, offsetof(Tail, data), 0, NULL},
    {"position", T_PYSSIZET, offsetof(Tail, position), 0, NULL},
    {"limit", T_PYSSIZET, offsetof(Tail, limit), 0, NULL},
    {"commit", T_PYSSIZET, offsetof(Tail, commit), 0, NULL},
    {"bias", T_PYSSIZET, offsetof(Tail, bias), 0, NULL},
    {"index", T_PYSSIZET, offsetof(Tail, index), 0, NULL},
    {"stamp", T_LONGLONG, offsetof(Tail, stamp), 0, NULL},
    {"base", T_LONGLONG, offsetof(Tail, base), 0, NULL},
    {"latest", T_LONGLONG, offsetof(Tail, latest), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef tail_properties[] = {
    {"prefix", (getter)tail_get_prefix, (setter)tail_set_prefix, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject tail_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "aiorecover._speedups.Tail",
    .tp_doc = PyDoc_STR("Where the next record of a lane goes: the twin of aiorecover.ring.tail.Tail."),
    .tp_basicsize = sizeof(Tail),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_traverse = (traverseproc)tail_traverse,
    .tp_clear = (inquiry)tail_clear,
    .tp_dealloc = (destructor)tail_dealloc,
    .tp_members = tail_members,
    .tp_getset = tail_properties,
};

/* -- a record: pieces that are copied one after the other --------------------------------------------------------- */

typedef struct {
    struct { const void *data; Py_ssize_t size; } piece[PIECES];
    int count;
    Py_ssize_t size;                       /* of all of them */
    unsigned char place[2 * VARINT_MOST];  /* room for numbers within it */
    unsigned char length[VARINT_MOST];     /* and for its length in front */
} Record;

static inline void add(Record *record, const void *data, Py_ssize_t size)
{
    record->piece[record->count].data = data;
    record->piece[record->count++].size = size;
    record->size += size;
}

static inline void add_bytes(Record *record, PyObject *bytes)
{
    add(record, PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
}

/* Begin with an empty piece: the length belongs there, and is known in the end. */
static inline void begin(Record *record)
{
    record->count = 0;
    record->size = 0;
    add(record, record->length, 0);
}

/* Write a zigzag varint; its bytes. */
static inline Py_ssize_t put_varint(unsigned char *at, int64_t number)
{
    uint64_t left = ((uint64_t)number << 1) ^ (number < 0 ? UINT64_MAX : 0);
    Py_ssize_t size = 0;
    while (left > 127) {
        at[size++] = (unsigned char)(left | 128);
        left >>= 7;
    }
    at[size++] = (unsigned char)left;
    return size;
}

static inline void finish(Record *record)
{
    Py_ssize_t size = put_varint(record->length, record->size);
    record->piece[0].size = size;
    record->size += size;
}

static void copy(const Record *record, char *to)
{
    for (int number = 0; number < record->count; number++) {
        memcpy(to, record->piece[number].data, (size_t)record->piece[number].size);
        to += record->piece[number].size;
    }
}

/* -- the store ---------------------------------------------------------------------------------------------------- */

/* Store into what is no memory, a disk of the tests that takes down every store: by items, as Python does. */
static int store_by_items(Tail *tail, const Record *record, Py_ssize_t word)
{
    int result = -1;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, record->size), *number = PyLong_FromSsize_t(word);
    if (tail->data == NULL || tail->words == NULL) PyErr_SetString(PyExc_AttributeError, "the cursor has no mapping");
    else if (bytes != NULL && number != NULL) {
        copy(record, PyBytes_AS_STRING(bytes));
        result = PySequence_SetSlice(tail->data, tail->position, tail->position + record->size, bytes);
        if (result == 0) result = PySequence_SetItem(tail->words, tail->commit, number);
    }
    Py_XDECREF(bytes);
    Py_XDECREF(number);
    return result;
}

/* Store the bytes, then the commit word: one store of the processor, and from there on the record is accepted (R5). */
static int store_in_memory(Tail *tail, const Record *record, Py_ssize_t word)
{
    Py_buffer memory;
    if (PyObject_GetBuffer(tail->words, &memory, PyBUF_WRITABLE) < 0) return -1;
    char *base = memory.buf;
    Py_ssize_t start = tail->position, commit = tail->commit;
    int inside = start >= 0 && record->size <= memory.len && start <= memory.len - record->size
                 && commit >= 0 && commit < memory.len >> 3 && ((uintptr_t)base & 7) == 0;
    if (inside) {
        copy(record, base + start);
        __atomic_store_n((uint64_t *)base + commit, (uint64_t)word, __ATOMIC_RELEASE);
    }
    else {
        PyErr_Format(PyExc_IndexError, "the record lies outside of the mapping at=%zd bytes=%zd", start, record->size);
    }
    PyBuffer_Release(&memory);
    return inside ? 0 : -1;
}

/* Store a record that there is room for as the next one, whose index is `index`. Where it goes to real memory, no Python
   code runs in here: what the pieces point to stays. */
static int store(Tail *tail, const Record *record, Py_ssize_t index)
{
    Py_ssize_t end = tail->position + record->size;
    int in_memory = tail->words != NULL && PyMemoryView_Check(tail->words);
    int result = in_memory ? store_in_memory(tail, record, end + tail->bias)
                           : store_by_items(tail, record, end + tail->bias);
    if (result == 0) {
        tail->position = end;
        tail->index = index + 1;
    }
    return result;
}

static int lay_note(Tail *tail, PyObject *note, PyObject *sequence)
{
    return drop(PyObject_CallMethodObjArgs((PyObject *)tail, names[ADD_NOTE], note, sequence, NULL));
}

static int make_room(Tail *tail, Py_ssize_t need)
{
    PyObject *number = PyLong_FromSsize_t(need);
    int result = number == NULL ? -1 : drop(PyObject_CallMethodOneArg((PyObject *)tail, names[MAKE_ROOM], number));
    Py_XDECREF(number);
    return result;
}

/* Bytes that a note takes; -1 with an error. */
static Py_ssize_t note_room(PyObject *note)
{
    if (note == Py_None) return 0;
    return check_type(note, &PyBytes_Type, "note") < 0 ? -1 : PyBytes_GET_SIZE(note) + trailer_size;
}

/* -- the writer --------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *producer_id, *epoch, *lanes, *find, *make_receipt;
    PyObject *prefix;              /* bytes: the header section up to the last digits of the sequence */
    unsigned long long thousands;  /* the next sequence is thousands * 1000 + low */
    int low, end;                  /* `end`: where another prefix begins */
} Writer;

static PyObject *import(const char *module_name, const char *name)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *found = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return found;
}

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *producer_id, *epoch, *find, *make_receipt = NULL;
    if (!PyArg_ParseTuple(args, "OOO|O:Writer", &producer_id, &epoch, &find, &make_receipt)) return NULL;
    Writer *self = (Writer *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->producer_id = Py_NewRef(producer_id);
    self->epoch = Py_NewRef(epoch);
    self->find = Py_NewRef(find);
    self->make_receipt = make_receipt ? Py_NewRef(make_receipt) : import("aiorecover.ring.writer", "Receipt");
    self->low = self->end = FIRST_SEQUENCE;
    self->lanes = PyDict_New();
    self->prefix = PyBytes_FromStringAndSize(NULL, 0);
    if (self->make_receipt == NULL || self->lanes == NULL || self->prefix == NULL) Py_CLEAR(self);
    return (PyObject *)self;
}

static int writer_traverse(Writer *self, visitproc visit, void *arg)
{
    Py_VISIT(self->lanes);
    Py_VISIT(self->find);
    Py_VISIT(self->make_receipt);
    return 0;
}

static int writer_clear(Writer *self)
{
    Py_CLEAR(self->lanes);
    Py_CLEAR(self->find);
    Py_CLEAR(self->make_receipt);
    return 0;
}

static void writer_dealloc(Writer *self)
{
    PyObject_GC_UnTrack(self);
    writer_clear(self);
    Py_XDECREF(self->producer_id);
    Py_XDECREF(self->epoch);
    Py_XDECREF(self->prefix);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *writer_make_receipts(Writer *self, PyObject *make_receipt)
{
    Py_XSETREF(self->make_receipt, Py_NewRef(make_receipt));
    Py_RETURN_NONE;
}

static PyObject *writer_next_sequence(Writer *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromUnsignedLongLong(self->thousands * THOUSAND + (unsigned)self->low);
}

/* Begin the sequences of two digits, of three, or the next thousand. */
static int next_prefix(Writer *self)
{
    unsigned long long thousands = self->thousands;
    int low = self->low;
    if (low == THOUSAND) {
        thousands++;
        low = 0;
    }
    int digits = thousands || low >= 100 ? 3 : low >= 10 ? 2 : 1;
    PyObject *prefix =
        bytes_only(PyObject_CallFunction(id_prefix, "OOKi", self->producer_id, self->epoch, thousands, digits));
    if (prefix == NULL) return -1;
    Py_XSETREF(self->prefix, prefix);
    self->thousands = thousands;
    self->low = low;
    self->end = digits == 1 ? 10 : digits == 2 ? 100 : THOUSAND;
    return 0;
}

/* The (cursor, key as Kafka writes it) of a record: from the table, else from `find`. */
static PyObject *look_up(Writer *self, PyObject *topic, PyObject *key, PyObject *partition)
{
    PyObject *found = NULL;
    PyObject *keys = Py_XNewRef(PyDict_GetItemWithError(self->lanes, topic));
    if (keys != NULL && partition == Py_None) {
        found = Py_XNewRef(PyDict_GetItemWithError(keys, key));
    }
    else if (keys != NULL) {
        PyObject *pair = PyTuple_Pack(2, key, partition);
        found = pair == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(keys, pair));
        Py_XDECREF(pair);
    }
    Py_XDECREF(keys);
    if (found == NULL) {
        if (PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_KeyError)) return NULL;
            PyErr_Clear();
        }
        found = PyObject_CallFunctionObjArgs(self->find, topic, key, partition, NULL);
        if (found == NULL) return NULL;
    }
    if (!PyTuple_Check(found) || PyTuple_GET_SIZE(found) != 2) {
        PyErr_SetString(PyExc_TypeError, "find must return a cursor and a key");
        Py_CLEAR(found);
    }
    else if (check_type(PyTuple_GET_ITEM(found, 0), &tail_type, "the cursor") < 0
             || check_type(PyTuple_GET_ITEM(found, 1), &PyBytes_Type, "the key") < 0) {
        Py_CLEAR(found);
    }
    return found;
}

/* Have the prefix stand for the record's time; `timestamp` is NULL where `time` says it. */
static int set_time(Tail *tail, PyObject *timestamp, int64_t time)
{
    int known = time >= 0 && time < TIME_MOST;
    if (known && time == tail->stamp) return 0;
    if (!known || tail->batch == NULL || tail->batch == Py_None) {  /* Python says what is wrong, or opens a batch */
        PyObject *given = timestamp == NULL ? PyLong_FromLongLong(time) : Py_NewRef(timestamp);
        int result =
            given == NULL ? -1 : drop(PyObject_CallMethodOneArg((PyObject *)tail, names[SET_TIME], given));
        Py_XDECREF(given);
        return result;
    }
    tail->prefix[0] = 0;
    tail->prefix_size = (unsigned char)(1 + put_varint(tail->prefix + 1, time - tail->base));
    tail->stamp = time;
    if (time > tail->latest) tail->latest = time;
    return 0;
}

/* Put a record together, for a batch that has room for it; its index, or -1. The prefix is the tail's own: whoever goes
   on without running Python code may rely on it. */
static Py_ssize_t lay_out(Record *record, Tail *tail, PyObject *key, PyObject *value, PyObject *timestamp, int64_t time,
                          PyObject *ids, const char *digits, Py_ssize_t digits_size, Py_ssize_t room)
{
    for (;;) {
        if (set_time(tail, timestamp, time) < 0) return -1;
        Py_ssize_t index = tail->index;
        if (index == TABLE) {
            if (make_room(tail, 0) < 0) return -1;
            continue;
        }
        begin(record);
        add(record, tail->prefix, tail->prefix_size);
        Py_ssize_t size = put_varint(record->place, index);
        add(record, record->place, size);
        add_bytes(record, key);
        unsigned char *at = record->place + size;
        add(record, at, put_varint(at, value == Py_None ? -1 : PyBytes_GET_SIZE(value)));
        if (value != Py_None) add_bytes(record, value);
        add_bytes(record, ids);
        add(record, digits, digits_size);
        finish(record);
        if (tail->position + record->size + room <= tail->limit) return index;
        if (make_room(tail, record->size + VARINT_MOST + room) < 0) return -1;
    }
}

typedef struct {
    PyObject *topic, *key, *value, *timestamp;  /* `timestamp` is NULL where `time` says it */
    int64_t time;                               /* ms; -1: Python looks at `timestamp` */
    PyObject *headers, *partition, *note;
} Fields;

static PyObject *store_fields(Writer *self, const Fields *fields)
{
    PyObject *ids = NULL, *sequence = NULL, *place = NULL, *batch = NULL, *receipt = NULL;
    PyObject *value = fields->value, *note = fields->note;
    if (self->lanes == NULL) return PyErr_Format(PyExc_RuntimeError, "the writer is gone");
    PyObject *found = look_up(self, fields->topic, fields->key, fields->partition);
    if (found == NULL) return NULL;
    Tail *tail = (Tail *)PyTuple_GET_ITEM(found, 0);
    Py_ssize_t room = note_room(note);
    if (room < 0 || (value != Py_None && check_type(value, &PyBytes_Type, "value") < 0)
        || (self->low == self->end && next_prefix(self) < 0)) {
        goto done;
    }
    int low = self->low;
    char digits[3] = {(char)('0' + low / 100), (char)('0' + low / 10 % 10), (char)('0' + low % 10)};
    int skipped = self->thousands || low >= 100 ? 0 : low >= 10 ? 1 : 2;
    sequence = PyLong_FromUnsignedLongLong(self->thousands * THOUSAND + (unsigned)low);
    ids = fields->headers == Py_None
              ? Py_NewRef(self->prefix)
              : bytes_only(PyObject_CallFunctionObjArgs(encode_headers, fields->headers, self->prefix, NULL));
    if (sequence == NULL || ids == NULL) goto done;
    Record record;
    Py_ssize_t index = lay_out(&record, tail, PyTuple_GET_ITEM(found, 1), value, fields->timestamp, fields->time, ids,
                               digits + skipped, 3 - skipped, room);
    if (index < 0 || (place = PyLong_FromSsize_t(index)) == NULL) goto done;
    batch = Py_NewRef(tail->batch == NULL ? Py_None : tail->batch);
    if (note != Py_None && lay_note(tail, note, sequence) < 0) goto done;
    if (store(tail, &record, index) < 0) goto done;
    self->low = low + 1;
    PyObject *given[] = {sequence, place, batch};
    receipt = PyObject_Vectorcall(self->make_receipt, given, 3, NULL);
done:
    Py_DECREF(found);
    Py_XDECREF(ids);
    Py_XDECREF(sequence);
    Py_XDECREF(place);
    Py_XDECREF(batch);
    return receipt;
}

static PyObject *writer_append(Writer *self, PyObject *const *args, Py_ssize_t count)
{
    if (count < 4 || count > 7) return PyErr_Format(PyExc_TypeError, "append takes 4 to 7 arguments, not %zd", count);
    Fields fields = {
        .topic = args[0], .key = args[1], .value = args[2], .timestamp = args[3],
        .time = PyLong_CheckExact(args[3]) ? PyLong_AsLongLong(args[3]) : -1,
        .headers = count > 4 ? args[4] : Py_None,
        .partition = count > 5 ? args[5] : Py_None,
        .note = count > 6 ? args[6] : Py_None,
    };
    if (fields.time == -1) PyErr_Clear();
    return store_fields(self, &fields);
}

static PyMethodDef writer_methods[] = {
    {"append", (PyCFunction)(void (*)(void))writer_append, METH_FASTCALL,
     PyDoc_STR("append($self, topic, key, value, timestamp_ms, headers=None, partition=None, note=None, /)\n--\n\n"
               "Store one record and return its receipt.")},
    {"make_receipts", (PyCFunction)writer_make_receipts, METH_O,
     PyDoc_STR("make_receipts($self, make_receipt, /)\n--\n\nHave append return what make_receipt returns.")},
    {"next_sequence", (PyCFunction)writer_next_sequence, METH_NOARGS,
     PyDoc_STR("next_sequence($self, /)\n--\n\nReturn the sequence of the record that is stored next.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef writer_members[] = {
    {"producer_id", T_OBJECT_EX, offsetof(Writer, producer_id), READONLY, NULL},
    {"epoch", T_OBJECT_EX, offsetof(Writer, epoch), READONLY, NULL},
    {"lanes", T_OBJECT_EX, offsetof(Writer, lanes), READONLY, NULL},
    {"find", T_OBJECT_EX, offsetof(Writer, find), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject writer_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "aiorecover._speedups.Writer",
    .tp_doc = PyDoc_STR("Writer(producer_id, epoch, find, make_receipt=ring.writer.Receipt, /)\n--\n\n"
                        "Store records: the twin of aiorecover.ring.writer.PythonWriter."),
    .tp_basicsize = sizeof(Writer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = writer_new,
    .tp_traverse = (traverseproc)writer_traverse,
    .tp_clear = (inquiry)writer_clear,
    .tp_dealloc = (destructor)writer_dealloc,
    .tp_methods = writer_methods,
    .tp_members = writer_members,
};

/* -- what a producer accepts -------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Writer *writer;
    PyObject *encode, *otherwise;
    unsigned long thread;
    Py_ssize_t fits;                /* bytes of key and value that are not too large, whatever else there is */
    int plain_values, plain_keys;   /* bytes go as they are: there is no serializer */
    int turn;                       /* the record with each so-manieth sequence is left to `otherwise` */
} Acceptor;

enum { TOPIC, VALUE, KEY, PARTITION, TIMESTAMP, HEADERS, CONTEXT, SOURCE, NOW, ARGUMENTS };

/* Whether a record is usual, as far as that is seen before its value is encoded. */
static int takes(const Acceptor *self, PyObject *const *args)
{
    const Writer *writer = self->writer;
    PyObject *key = args[KEY];
    for (int number = PARTITION; number < NOW; number++) {
        if (args[number] != Py_None) return 0;
    }
    return args[VALUE] != Py_None && PyLong_CheckExact(args[NOW])
           && (key == Py_None || (self->plain_keys && (PyBytes_CheckExact(key) || PyUnicode_CheckExact(key))))
           && (writer->thousands * THOUSAND + (unsigned)writer->low) % (unsigned)self->turn != 0
           && PyThread_get_thread_ident() == self->thread;
}

/* Bytes of a key at the most: a character has four. */
static Py_ssize_t key_most(PyObject *key)
{
    if (key == Py_None) return 0;
    return 4 * (PyBytes_CheckExact(key) ? PyBytes_GET_SIZE(key) : PyUnicode_GET_LENGTH(key));
}

/* Do what `otherwise` does with a usual record: it gets all others. */
static PyObject *acceptor_call(Acceptor *self, PyObject *const *args, size_t flags, PyObject *keywords)
{
    if (self->writer == NULL) return PyErr_Format(PyExc_RuntimeError, "the writer is gone");
    if (PyVectorcall_NARGS(flags) != ARGUMENTS || keywords != NULL || !takes(self, args)) {
        return PyObject_Vectorcall(self->otherwise, args, flags, keywords);
    }
    PyObject *value = args[VALUE], *receipt = NULL;
    if (self->plain_values && PyBytes_CheckExact(value)) {
        Py_INCREF(value);
    }
    else {
        PyObject *given[] = {args[TOPIC], value, Py_None, args[KEY]};
        value = PyObject_Vectorcall(self->encode, given, 4, NULL);
        if (value == NULL) return NULL;
    }
    Py_ssize_t size = PyBytes_CheckExact(value) ? PyBytes_GET_SIZE(value) : 0;  /* else it is None */
    if (size + key_most(args[KEY]) > self->fits) {
        receipt = PyObject_Vectorcall(self->otherwise, args, flags, NULL);
    }
    else {
        long long now = PyLong_AsLongLong(args[NOW]);
        Fields fields = {
            .topic = args[TOPIC], .key = args[KEY], .value = value, .time = now / NS_PER_MS,
            .headers = Py_None, .partition = Py_None, .note = Py_None,
        };
        if (now != -1 || !PyErr_Occurred()) receipt = store_fields(self->writer, &fields);
    }
    Py_DECREF(value);
    return receipt;
}

static PyObject *acceptor_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *writer, *encode, *otherwise;
    Py_ssize_t fits;
    int plain_values, plain_keys, turn;
    if (!PyArg_ParseTuple(args, "O!OOnppi:Acceptor", &writer_type, &writer, &encode, &otherwise, &fits, &plain_values,
                          &plain_keys, &turn)) {
        return NULL;
    }
    if (turn < 1) return PyErr_Format(PyExc_ValueError, "a turn has a record at least: turn=%d", turn);
    Acceptor *self = (Acceptor *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->call = (vectorcallfunc)acceptor_call;
    self->writer = (Writer *)Py_NewRef(writer);
    self->encode = Py_NewRef(encode);
    self->otherwise = Py_NewRef(otherwise);
    self->thread = PyThread_get_thread_ident();
    self->fits = fits;
    self->plain_values = plain_values;
    self->plain_keys = plain_keys;
    self->turn = turn;
    return (PyObject *)self;
}

static int acceptor_traverse(Acceptor *self, visitproc visit, void *arg)
{
    Py_VISIT(self->writer);
    Py_VISIT(self->encode);
    Py_VISIT(self->otherwise);
    return 0;
}

static int acceptor_clear(Acceptor *self)
{
    Py_CLEAR(self->writer);
    Py_CLEAR(self->encode);
    Py_CLEAR(self->otherwise);
    return 0;
}

static void acceptor_dealloc(Acceptor *self)
{
    PyObject_GC_UnTrack(self);
    acceptor_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject acceptor_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "aiorecover._speedups.Acceptor",
    .tp_doc = PyDoc_STR("Acceptor(writer, encode, otherwise, fits, plain_values, plain_keys, turn, /)\n--\n\n"
                        "What `acceptor.Acceptor.store`, which is `otherwise`, does with a usual record, here."),
    .tp_basicsize = sizeof(Acceptor),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Acceptor, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = acceptor_new,
    .tp_traverse = (traverseproc)acceptor_traverse,
    .tp_clear = (inquiry)acceptor_clear,
    .tp_dealloc = (destructor)acceptor_dealloc,
};

/* -- records of another batch ------------------------------------------------------------------------------------- */

/* The place after the varint at `at`; -1: it is none that `put_varint` writes, or one of 64 bits. */
static Py_ssize_t read_varint(const unsigned char *data, Py_ssize_t size, Py_ssize_t at, uint64_t *number)
{
    *number = 0;
    for (int shift = 0; at >= 0 && at < size && shift < 63; shift += 7) {
        unsigned char byte = data[at++];
        *number |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return byte == 0 && shift ? -1 : at;
    }
    return -1;
}

/* Put together a whole record for another place. 0: it is not as simple as that. */
static int lay_out_anew(Record *record, PyObject *old, Py_ssize_t index, int64_t delta)
{
    const unsigned char *data = (const unsigned char *)PyBytes_AS_STRING(old);
    Py_ssize_t size = PyBytes_GET_SIZE(old);
    uint64_t length, ignored;
    Py_ssize_t body = read_varint(data, size, 0, &length);
    Py_ssize_t time_end = body < 0 ? -1 : read_varint(data, size, body + 1, &ignored);
    Py_ssize_t offset_end = read_varint(data, size, time_end, &ignored);
    if (offset_end < 0 || offset_end > size - FIELDS_LEAST || length & 1 || length >> 1 != (uint64_t)(size - body)) {
        return 0;
    }
    begin(record);
    add(record, data + body, 1);
    Py_ssize_t place = put_varint(record->place, delta);
    add(record, record->place, place + put_varint(record->place + place, index));
    add(record, data + offset_end, size - offset_end);
    finish(record);
    return 1;
}

static PyObject *append_raw(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *cursor, *old, *note = Py_None, *sequence = NULL, *given = NULL;
    long long delta, time;
    if (!PyArg_ParseTuple(args, "O!SL|OO", &tail_type, &cursor, &old, &delta, &note, &sequence)) return NULL;
    Tail *tail = (Tail *)cursor;
    if (tail->batch == NULL || tail->batch == Py_None) return PyErr_Format(PyExc_AssertionError, "no batch is open");
    if (__builtin_add_overflow(tail->base, delta, &time)) return PyErr_Format(PyExc_OverflowError, "no such time");
    int result = -1;
    Record record;
    Py_ssize_t index = tail->index, room = note_room(note);
    if (room < 0) return NULL;
    if (!lay_out_anew(&record, old, index, delta)) {  /* it says why */
        given = bytes_only(PyObject_CallFunction(moved, "OnL", old, index, delta));
        if (given == NULL) return NULL;
        begin(&record);
        add_bytes(&record, given);
    }
    if (tail->position + record.size + room > tail->limit) {
        PyErr_Format(PyExc_ValueError, "the batch was opened too small bytes=%zd", record.size);
        goto done;
    }
    if (note != Py_None) {
        PyObject *number = sequence == NULL ? PyLong_FromLong(0) : Py_NewRef(sequence);
        int laid = number == NULL ? -1 : lay_note(tail, note, number);
        Py_XDECREF(number);
        if (laid < 0) goto done;
    }
    result = store(tail, &record, index);
    if (result == 0 && time > tail->latest) tail->latest = time;
done:
    Py_XDECREF(given);
    if (result < 0) return NULL;
    Py_RETURN_NONE;
}

/* -- the module --------------------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"append_raw", append_raw, METH_VARARGS,
     PyDoc_STR("append_raw(cursor, record, delta, note=None, sequence=0, /)\n--\n\n"
               "Store a whole record of another batch as the cursor's next one.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "aiorecover._speedups",
    .m_doc = PyDoc_STR("The twin of aiorecover.ring.writer in C."),
    .m_size = -1,
    .m_methods = functions,
};

static int find_python_code(void)
{
    PyObject *size = import("aiorecover.ring.notes", "TRAILER_SIZE");
    trailer_size = size == NULL ? -1 : PyLong_AsSsize_t(size);
    Py_XDECREF(size);
    if (trailer_size < 0) return -1;
    encode_headers = import("aiorecover.ring.records", "encode_headers");
    id_prefix = import("aiorecover.ring.records", "id_prefix");
    moved = import("aiorecover.ring.records", "moved");
    for (int name = 0; name < NAMES; name++) {
        if ((names[name] = PyUnicode_InternFromString(name_texts[name])) == NULL) return -1;
    }
    return encode_headers && id_prefix && moved ? 0 : -1;
}

PyMODINIT_FUNC PyInit__speedups(void)
{
    if (find_python_code() < 0) return NULL;
    PyObject *module = PyModule_Create(&definition);
    PyTypeObject *const types[] = {&tail_type, &writer_type, &acceptor_type};
    for (size_t number = 0; module != NULL && number < Py_ARRAY_LENGTH(types); number++) {
        if (PyModule_AddType(module, types[number]) < 0) Py_CLEAR(module);
    }
    return module;
}
