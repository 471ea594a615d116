/* The twin of aiorecover/ring/writer.py in C: the same bytes, the same order of stores, the same errors.

   The usual path is all C: a lane that is known, a value of bytes, no headers, no note, room in the batch. What is rare
   is left to the Python code: `find`, `set_time` without a batch, `make_room` and `add_note` of a Cursor,
   `encode_headers`, `id_prefix`, and `moved` for what is damaged. `Acceptor` is the same for the producer's `_store`.

   State stays where it is. The attributes of a Cursor are Python objects in its slots, and are read and replaced there
   at the offsets that the descriptors of the slots name: a cursor of the Python writer and of this one are the same.
   The memory of a mapping is asked for with each record and let go after it: closing a mapping needs to know nothing of
   this file, and a mapping that is closed is a ValueError before anything is stored.

   All that can fail comes before the first byte is stored: the new numbers of the cursor are made ahead. Only making
   the receipt comes after it, as in Python. */

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

static PyTypeObject *cursor_type;
static PyObject *encode_headers, *id_prefix, *moved;
static Py_ssize_t trailer_size;  /* bytes of a note beside its payload */

enum { SET_TIME, MAKE_ROOM, ADD_NOTE, BASE, LATEST, NAMES };
static const char *const name_texts[NAMES] = {"set_time", "make_room", "add_note", "base", "latest"};
static PyObject *names[NAMES];

enum { BATCH, BIAS, COMMIT, DATA, INDEX, LIMIT, POSITION, PREFIX, STAMP, WORDS, SLOTS };
static const char *const slot_names[SLOTS] = {
    "batch", "bias", "commit", "data", "index", "limit", "position", "prefix", "stamp", "words"};
static Py_ssize_t slot_offsets[SLOTS];

#define SLOT(cursor, slot) (*(PyObject **)((char *)(cursor) + slot_offsets[slot]))

/* The number in a slot; -1 with an error where it is none. No number here is negative. */
static inline Py_ssize_t number_in(PyObject *cursor, int slot)
{
    return PyLong_AsSsize_t(SLOT(cursor, slot));
}

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
static int store_by_items(PyObject *cursor, const Record *record, Py_ssize_t start, Py_ssize_t commit, Py_ssize_t word)
{
    int result = -1;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, record->size), *number = PyLong_FromSsize_t(word);
    if (bytes != NULL && number != NULL) {
        copy(record, PyBytes_AS_STRING(bytes));
        result = PySequence_SetSlice(SLOT(cursor, DATA), start, start + record->size, bytes);
        if (result == 0) result = PySequence_SetItem(SLOT(cursor, WORDS), commit, number);
    }
    Py_XDECREF(bytes);
    Py_XDECREF(number);
    return result;
}

/* Store the bytes, then the commit word: one store of the processor, and from there on the record is accepted (R5). */
static int store_in_memory(PyObject *words, const Record *record, Py_ssize_t start, Py_ssize_t commit, Py_ssize_t word)
{
    Py_buffer memory;
    if (PyObject_GetBuffer(words, &memory, PyBUF_WRITABLE) < 0) return -1;
    char *base = memory.buf;
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

/* Store a record that there is room for as the cursor's next one, whose index is `index`. Where its slots hold real
   memory and numbers, no Python code runs in here: what the pieces point to stays. */
static int store(PyObject *cursor, const Record *record, Py_ssize_t index)
{
    Py_ssize_t start = number_in(cursor, POSITION), commit = number_in(cursor, COMMIT), bias = number_in(cursor, BIAS);
    if (PyErr_Occurred()) return -1;
    Py_ssize_t end = start + record->size;
    PyObject *position = PyLong_FromSsize_t(end), *next = PyLong_FromSsize_t(index + 1);
    PyObject *words = SLOT(cursor, WORDS);
    int result = -1;
    if (position != NULL && next != NULL) {
        result = words != NULL && PyMemoryView_Check(words)
                     ? store_in_memory(words, record, start, commit, end + bias)
                     : store_by_items(cursor, record, start, commit, end + bias);
    }
    if (result == 0) {
        Py_XSETREF(SLOT(cursor, POSITION), position);  /* old numbers go: nothing of ours runs then */
        Py_XSETREF(SLOT(cursor, INDEX), next);
    }
    else {
        Py_XDECREF(position);
        Py_XDECREF(next);
    }
    return result;
}

static int lay_note(PyObject *cursor, PyObject *note, PyObject *sequence)
{
    return drop(PyObject_CallMethodObjArgs(cursor, names[ADD_NOTE], note, sequence, NULL));
}

static int make_room(PyObject *cursor, Py_ssize_t need)
{
    PyObject *number = PyLong_FromSsize_t(need);
    int result = number == NULL ? -1 : drop(PyObject_CallMethodOneArg(cursor, names[MAKE_ROOM], number));
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
    else if (check_type(PyTuple_GET_ITEM(found, 0), cursor_type, "the cursor") < 0
             || check_type(PyTuple_GET_ITEM(found, 1), &PyBytes_Type, "the key") < 0) {
        Py_CLEAR(found);
    }
    return found;
}

/* A number that `name` of an object holds; -1 with an error where it is none. */
static int64_t number_of(PyObject *object, int name)
{
    PyObject *found = PyObject_GetAttr(object, names[name]);
    int64_t number = found == NULL ? -1 : PyLong_AsLongLong(found);
    Py_XDECREF(found);
    return number;
}

/* What `Cursor.set_time` does where a batch is open. */
static int set_time_in_batch(PyObject *cursor, PyObject *batch, PyObject *timestamp, int64_t time)
{
    int64_t base = number_of(batch, BASE), latest = number_of(batch, LATEST);
    if (PyErr_Occurred()) return -1;
    unsigned char prefix[1 + VARINT_MOST] = {0};
    PyObject *made = PyBytes_FromStringAndSize((char *)prefix, 1 + put_varint(prefix + 1, time - base));
    if (made == NULL) return -1;
    Py_XSETREF(SLOT(cursor, PREFIX), made);
    Py_XSETREF(SLOT(cursor, STAMP), Py_NewRef(timestamp));
    return time > latest ? PyObject_SetAttr(batch, names[LATEST], timestamp) : 0;
}

/* Have the cursor's prefix stand for the record's time. */
static inline int set_time(PyObject *cursor, PyObject *timestamp)
{
    PyObject *stamp = Py_XNewRef(SLOT(cursor, STAMP));
    int same = stamp == NULL ? 0 : PyObject_RichCompareBool(timestamp, stamp, Py_EQ);
    Py_XDECREF(stamp);
    if (same == 0) {
        PyObject *batch = Py_XNewRef(SLOT(cursor, BATCH));
        int64_t time = PyLong_CheckExact(timestamp) ? PyLong_AsLongLong(timestamp) : -1;
        if (time == -1) PyErr_Clear();  /* Python says what is wrong with it */
        int open = batch != NULL && batch != Py_None && time >= 0 && time < TIME_MOST;
        same = open ? set_time_in_batch(cursor, batch, timestamp, time)
                    : drop(PyObject_CallMethodOneArg(cursor, names[SET_TIME], timestamp));
        Py_XDECREF(batch);
    }
    return same < 0 ? -1 : check_type(SLOT(cursor, PREFIX), &PyBytes_Type, "the cursor's prefix");
}

/* Put a record together, for a batch that has room for it; its index, or -1. The prefix is the cursor's own object:
   whoever goes on without running Python code may rely on it. */
static Py_ssize_t lay_out(Record *record, PyObject *cursor, PyObject *key, PyObject *value, PyObject *timestamp,
                          PyObject *ids, const char *digits, Py_ssize_t digits_size, Py_ssize_t room)
{
    for (;;) {
        if (set_time(cursor, timestamp) < 0) return -1;
        Py_ssize_t index = number_in(cursor, INDEX), position = number_in(cursor, POSITION);
        Py_ssize_t limit = number_in(cursor, LIMIT);
        if (PyErr_Occurred()) return -1;
        if (index == TABLE) {
            if (make_room(cursor, 0) < 0) return -1;
            continue;
        }
        begin(record);
        add_bytes(record, SLOT(cursor, PREFIX));
        Py_ssize_t size = put_varint(record->place, index);
        add(record, record->place, size);
        add_bytes(record, key);
        unsigned char *at = record->place + size;
        add(record, at, put_varint(at, value == Py_None ? -1 : PyBytes_GET_SIZE(value)));
        if (value != Py_None) add_bytes(record, value);
        add_bytes(record, ids);
        add(record, digits, digits_size);
        finish(record);
        if (position + record->size + room <= limit) return index;
        if (make_room(cursor, record->size + VARINT_MOST + room) < 0) return -1;
    }
}

static PyObject *writer_append(Writer *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *ids = NULL, *sequence = NULL, *place = NULL, *batch = NULL, *receipt = NULL;
    if (count < 4 || count > 7) return PyErr_Format(PyExc_TypeError, "append takes 4 to 7 arguments, not %zd", count);
    if (self->lanes == NULL) return PyErr_Format(PyExc_RuntimeError, "the writer is gone");
    PyObject *topic = args[0], *key = args[1], *value = args[2], *timestamp = args[3];
    PyObject *headers = count > 4 ? args[4] : Py_None, *partition = count > 5 ? args[5] : Py_None;
    PyObject *note = count > 6 ? args[6] : Py_None;
    PyObject *found = look_up(self, topic, key, partition);
    if (found == NULL) return NULL;
    PyObject *cursor = PyTuple_GET_ITEM(found, 0);
    Py_ssize_t room = note_room(note);
    if (room < 0 || (value != Py_None && check_type(value, &PyBytes_Type, "value") < 0)
        || (self->low == self->end && next_prefix(self) < 0)) {
        goto done;
    }
    int low = self->low;
    char digits[3] = {(char)('0' + low / 100), (char)('0' + low / 10 % 10), (char)('0' + low % 10)};
    int skipped = self->thousands || low >= 100 ? 0 : low >= 10 ? 1 : 2;
    sequence = PyLong_FromUnsignedLongLong(self->thousands * THOUSAND + (unsigned)low);
    ids = headers == Py_None
              ? Py_NewRef(self->prefix)
              : bytes_only(PyObject_CallFunctionObjArgs(encode_headers, headers, self->prefix, NULL));
    if (sequence == NULL || ids == NULL) goto done;
    Record record;
    Py_ssize_t index = lay_out(&record, cursor, PyTuple_GET_ITEM(found, 1), value, timestamp, ids, digits + skipped,
                               3 - skipped, room);
    if (index < 0) goto done;
    PyObject *prefix = Py_NewRef(SLOT(cursor, PREFIX));  /* a piece of the record, while a note is laid down */
    place = Py_NewRef(SLOT(cursor, INDEX));
    batch = Py_XNewRef(SLOT(cursor, BATCH));
    int stored = note != Py_None && lay_note(cursor, note, sequence) < 0 ? -1 : store(cursor, &record, index);
    Py_DECREF(prefix);
    if (stored < 0) goto done;
    self->low = low + 1;
    PyObject *given[] = {sequence, place, batch == NULL ? Py_None : batch};
    receipt = PyObject_Vectorcall(self->make_receipt, given, 3, NULL);
done:
    Py_DECREF(found);
    Py_XDECREF(ids);
    Py_XDECREF(sequence);
    Py_XDECREF(place);
    Py_XDECREF(batch);
    return receipt;
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
    if (!PyBytes_CheckExact(value) || PyBytes_GET_SIZE(value) + key_most(args[KEY]) > self->fits) {
        receipt = PyObject_Vectorcall(self->otherwise, args, flags, NULL);
    }
    else {
        long long now = PyLong_AsLongLong(args[NOW]);
        PyObject *timestamp = now == -1 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(now / NS_PER_MS);
        PyObject *given[] = {args[TOPIC], args[KEY], value, timestamp};
        if (timestamp != NULL) receipt = writer_append(self->writer, given, 4);
        Py_XDECREF(timestamp);
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
                        "What the producer's `_store`, which is `otherwise`, does with a usual record, in this thread."),
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

/* Have the batch know the record's time, where that is the latest. */
static int keep_latest(PyObject *batch, PyObject *delta)
{
    PyObject *base = PyObject_GetAttr(batch, names[BASE]);
    PyObject *latest = base == NULL ? NULL : PyObject_GetAttr(batch, names[LATEST]);
    PyObject *time = latest == NULL ? NULL : PyNumber_Add(base, delta);
    int later = time == NULL ? -1 : PyObject_RichCompareBool(time, latest, Py_GT);
    int result = later == 1 ? PyObject_SetAttr(batch, names[LATEST], time) : later;
    Py_XDECREF(base);
    Py_XDECREF(latest);
    Py_XDECREF(time);
    return result;
}

static PyObject *append_raw(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *cursor, *old, *delta, *note = Py_None, *sequence = NULL, *given = NULL;
    if (!PyArg_ParseTuple(args, "O!SO|OO", cursor_type, &cursor, &old, &delta, &note, &sequence)) return NULL;
    PyObject *batch = SLOT(cursor, BATCH);
    if (batch == NULL || batch == Py_None) return PyErr_Format(PyExc_AssertionError, "no batch is open");
    Py_INCREF(batch);
    int result = -1;
    Record record;
    Py_ssize_t index = number_in(cursor, INDEX), room = note_room(note);
    int64_t milliseconds = PyLong_AsLongLong(delta);
    if (room < 0 || PyErr_Occurred()) goto done;
    if (!lay_out_anew(&record, old, index, milliseconds)) {  /* it says why */
        given = bytes_only(PyObject_CallFunction(moved, "OnO", old, index, delta));
        if (given == NULL) goto done;
        begin(&record);
        add_bytes(&record, given);
    }
    Py_ssize_t position = number_in(cursor, POSITION), limit = number_in(cursor, LIMIT);
    if (PyErr_Occurred()) goto done;
    if (position + record.size + room > limit) {
        PyErr_Format(PyExc_ValueError, "the batch was opened too small bytes=%zd", record.size);
        goto done;
    }
    if (note != Py_None) {
        PyObject *number = sequence == NULL ? PyLong_FromLong(0) : Py_NewRef(sequence);
        int laid = number == NULL ? -1 : lay_note(cursor, note, number);
        Py_XDECREF(number);
        if (laid < 0) goto done;
    }
    if (store(cursor, &record, index) == 0) result = keep_latest(batch, delta);
done:
    Py_DECREF(batch);
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

/* Take down where the slots of a Cursor lie. */
static int find_slots(void)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        PyObject *found = PyObject_GetAttrString((PyObject *)cursor_type, slot_names[slot]);
        PyMemberDef *member =
            found != NULL && Py_IS_TYPE(found, &PyMemberDescr_Type) ? ((PyMemberDescrObject *)found)->d_member : NULL;
        if (member == NULL || member->type != T_OBJECT_EX) {
            Py_XDECREF(found);
            PyErr_Format(PyExc_ImportError, "Cursor.%s is no slot", slot_names[slot]);
            return -1;
        }
        slot_offsets[slot] = member->offset;
        Py_DECREF(found);
    }
    return 0;
}

static int find_python_code(void)
{
    PyObject *size = import("aiorecover.ring.notes", "TRAILER_SIZE");
    trailer_size = size == NULL ? -1 : PyLong_AsSsize_t(size);
    Py_XDECREF(size);
    cursor_type = (PyTypeObject *)import("aiorecover.ring.lane", "Cursor");
    if (trailer_size < 0 || cursor_type == NULL || find_slots() < 0) return -1;
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
    if (module != NULL && (PyModule_AddType(module, &writer_type) < 0 || PyModule_AddType(module, &acceptor_type) < 0)) {
        Py_CLEAR(module);
    }
    return module;
}
