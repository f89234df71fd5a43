// Guides come before the many fields and methods whose names only contain what is looked for.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 2,
  objPrio: { 0: 2, 1: 0, 2: -2 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
