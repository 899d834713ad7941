// A transcript as a Word document (Office Open XML, ECMA-376): the least that Word and LibreOffice open.

import { clock } from "./dom.js";
import { strToU8, zipSync } from "./vendor/fflate.js";

const MAIN = "http://schemas.openxmlformats.org/wordprocessingml/2006/main";
const PACKAGE = "http://schemas.openxmlformats.org/package/2006";
const OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
const WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml";
const HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n';
// What XML 1.0 cannot hold, and halves of surrogate pairs.
const INVALID = /[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu;
const RIGHT_TO_LEFT = /^\P{L}*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/u;

/** The bytes of the document. `facts` stand below the title, `note` at the end. `paragraphs`: [{start, speaker, text,
 * translation}]; translations stand beside the text. */
export function docx(title, facts, paragraphs, note) {
  const translated = paragraphs.some(({ translation }) => translation);
  const body = [
    paragraph([run(title)], "Title"),
    paragraph([run(facts.join(" · "), "Note")]),
    translated ? table(paragraphs) : paragraphs.map(spoken).join(""),
    note && paragraph([run(note, "Note")]),
    '<w:sectPr><w:pgSz w:w="11906" w:h="16838"/><w:pgMar w:top="1417" w:right="1417" w:bottom="1417" w:left="1417" w:header="708" w:footer="708" w:gutter="0"/></w:sectPr>',
  ];
  const files = {
    "[Content_Types].xml": `<Types xmlns="${PACKAGE}/content-types"><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" ContentType="application/xml"/><Override PartName="/word/document.xml" ContentType="${WORD}.document.main+xml"/><Override PartName="/word/styles.xml" ContentType="${WORD}.styles+xml"/></Types>`,
    "_rels/.rels": `<Relationships xmlns="${PACKAGE}/relationships"><Relationship Id="rId1" Type="${OFFICE}/officeDocument" Target="word/document.xml"/></Relationships>`,
    "word/_rels/document.xml.rels": `<Relationships xmlns="${PACKAGE}/relationships"><Relationship Id="rId1" Type="${OFFICE}/styles" Target="styles.xml"/></Relationships>`,
    "word/document.xml": `<w:document xmlns:w="${MAIN}"><w:body>${body.join("")}</w:body></w:document>`,
    "word/styles.xml": `<w:styles xmlns:w="${MAIN}">${STYLES}</w:styles>`,
  };
  return zipSync(Object.fromEntries(Object.entries(files).map(([name, text]) => [name, strToU8(HEAD + text)])));
}

const STYLES = [
  '<w:docDefaults><w:rPrDefault><w:rPr><w:sz w:val="22"/><w:szCs w:val="22"/></w:rPr></w:rPrDefault>',
  '<w:pPrDefault><w:pPr><w:spacing w:after="160" w:line="276" w:lineRule="auto"/></w:pPr></w:pPrDefault></w:docDefaults>',
  '<w:style w:type="paragraph" w:default="1" w:styleId="Normal"><w:name w:val="Normal"/></w:style>',
  '<w:style w:type="paragraph" w:styleId="Title"><w:name w:val="Title"/><w:basedOn w:val="Normal"/><w:rPr><w:b/><w:bCs/><w:sz w:val="36"/><w:szCs w:val="36"/></w:rPr></w:style>',
  '<w:style w:type="character" w:styleId="Note"><w:name w:val="Note"/><w:rPr><w:color w:val="666666"/><w:sz w:val="18"/><w:szCs w:val="18"/></w:rPr></w:style>',
  '<w:style w:type="character" w:styleId="Speaker"><w:name w:val="Speaker"/><w:rPr><w:b/><w:bCs/></w:rPr></w:style>',
].join("");

function spoken({ start, speaker, text }) {
  const runs = [run(`${clock(start)}  `, "Note"), ...(speaker ? [run(`${speaker}: `, "Speaker")] : []), run(text)];
  return paragraph(runs, "", RIGHT_TO_LEFT.test(text));
}

/** Two columns without lines: the text and its translation. */
function table(paragraphs) {
  const cell = (content) => `<w:tc><w:tcPr><w:tcW w:w="4536" w:type="dxa"/></w:tcPr>${content}</w:tc>`;
  const rows = paragraphs.map((p) => {
    const other = paragraph([run(p.translation)], "", RIGHT_TO_LEFT.test(p.translation));
    return `<w:tr>${cell(spoken(p))}${cell(other)}</w:tr>`;
  });
  const columns = '<w:tblGrid><w:gridCol w:w="4536"/><w:gridCol w:w="4536"/></w:tblGrid>';
  // A table must be followed by a paragraph.
  return `<w:tbl><w:tblPr><w:tblW w:w="9072" w:type="dxa"/></w:tblPr>${columns}${rows.join("")}</w:tbl><w:p/>`;
}

function paragraph(runs, style = "", rightToLeft = false) {
  const properties = [style && `<w:pStyle w:val="${style}"/>`, rightToLeft && "<w:bidi/>"].filter(Boolean).join("");
  return `<w:p>${properties && `<w:pPr>${properties}</w:pPr>`}${runs.join("")}</w:p>`;
}

function run(text, style = "") {
  const properties = [style && `<w:rStyle w:val="${style}"/>`, RIGHT_TO_LEFT.test(text) && "<w:rtl/>"].filter(Boolean).join("");
  return `<w:r>${properties && `<w:rPr>${properties}</w:rPr>`}<w:t xml:space="preserve">${escaped(text)}</w:t></w:r>`;
}

function escaped(text) {
  const named = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
  return text.replaceAll(INVALID, "").replaceAll(/[&<>]/g, (mark) => named[mark]);
}
