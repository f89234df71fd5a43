// Guides come before the many fields and methods whose names only contain what is looked for, and a
// page that is called as the query is comes first.
const query = (new URLSearchParams(window.location.search).get("q") || "").trim().toLowerCase();

var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 2,
  objPrio: { 0: 2, 1: 0, 2: -2 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, title, anchor, description, score]) => {
    if (page.startsWith("reference/")) return score;
    return score + (title.toLowerCase().includes(query) ? 20 : 1);
  },
};
